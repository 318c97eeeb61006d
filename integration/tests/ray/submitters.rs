//! Jobs whose submitter disappears, or contradicts Ray.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Binding, Node, Pod};
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use lockstep_api::ray::{RayJobDeploymentStatus as Phase, RayJobStatus};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::dashboard;
use crate::fixture::{Case, case};
use crate::job::{ray_says, running, status, succeeds, until, until_phase};
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(an_evicted_submitter_is_followed_by_one_that_attaches),
        case!(a_submitter_on_a_lost_node_is_followed_by_one_that_attaches),
        case!(a_submitter_that_says_failed_while_ray_runs_is_not_believed),
        case!(a_submitter_that_has_failed_for_good_leaves_the_end_to_ray),
        case!(what_the_submitter_saw_counts_where_ray_is_gone),
    ]
}

/// Names of the submitter's pods that are not being deleted and have not ended.
async fn submitters_pods(scene: &Scene) -> Result<Vec<String>> {
    let of_job = ListParams::default().labels("batch.kubernetes.io/job-name=rj");
    let pods = scene.api::<Pod>().list(&of_job).await?.items;
    let live = pods.iter().filter(|pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        pod.meta().deletion_timestamp.is_none() && phase != Some("Failed")
    });
    Ok(live.map(ResourceExt::name_any).collect())
}

/// Waits for the submitter's only pod, which must not be this one.
async fn another_pod(scene: &Scene, former: &str) -> Result<String> {
    eventually("a pod of the submitter", PATIENCE * 2, async || {
        let pods = submitters_pods(scene).await?;
        let [pod] = pods.as_slice() else {
            anyhow::bail!("{pods:?}");
        };
        ensure!(pod != former, "it is the former one");
        Ok(pod.clone())
    })
    .await
}

/// Checks that the job runs on unchanged, and succeeds.
async fn is_untouched(scene: &Scene, seen: &RayJobStatus) -> Result<()> {
    let now = status(scene).await?;
    ensure!(
        (now.job_status.as_str(), now.failed, now.num_retries) == ("RUNNING", 0, 0)
            && now.job_id == seen.job_id,
        "{now:?}"
    );
    succeeds(scene, seen).await
}

async fn an_evicted_submitter_is_followed_by_one_that_attaches(scene: Scene) -> Result<()> {
    // Pods that fail by themselves get no second chance.
    let more = json!({"submitterConfig": {"backoffLimit": 0}});
    let seen = running(&scene, more).await?;
    let uid = scene.api::<Job>().get("rj").await?.uid();
    let first = another_pod(&scene, "").await?;
    let evicted = json!({"status": {
        "phase": "Failed",
        "reason": "Evicted",
        "conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "TerminationByKubelet"}],
        "containerStatuses": [{
            "name": "ray-job-submitter", "image": "none", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": 137}},
        }],
    }});
    let pods = scene.api::<Pod>();
    pods.patch_status(&first, &PatchParams::default(), &Patch::Merge(evicted))
        .await?;
    let second = another_pod(&scene, &first).await?;
    let job = scene.api::<Job>().get("rj").await?;
    ensure!(job.uid() == uid, "the Job was replaced");
    // The same for a deleted pod, which the Job controller counts as a failure.
    pods.delete(&second, &DeleteParams::default()).await?;
    another_pod(&scene, &second).await?;
    is_untouched(&scene, &seen).await
}

async fn a_submitter_on_a_lost_node_is_followed_by_one_that_attaches(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    let uid = scene.api::<Job>().get("rj").await?.uid();
    let lost = another_pod(&scene, "").await?;
    // Its node is gone, so nothing reports its end.
    let nodes: Api<Node> = Api::all(scene.client());
    let node = format!("lost-{}", scene.namespace.name);
    let made = serde_json::from_value(json!({"metadata": {"name": node}}))?;
    nodes.create(&PostParams::default(), &made).await?;
    let binding = json!({"metadata": {"name": lost}, "target": {"kind": "Node", "name": node}});
    let binding: Binding = serde_json::from_value(binding)?;
    scene
        .api::<Pod>()
        .create_subresource::<_, Value>("binding", &lost, &PostParams::default(), &binding)
        .await?;
    scene.api::<Pod>().delete(&lost, &DeleteParams::default()).await?;
    another_pod(&scene, &lost).await?;
    let job = scene.api::<Job>().get("rj").await?;
    ensure!(
        job.uid() != uid && job.annotations().get("lockstep.dev/ray-job-id") == Some(&seen.job_id),
        "{job:?}"
    );
    is_untouched(&scene, &seen).await?;
    nodes.delete(&node, &DeleteParams::default()).await?;
    Ok(())
}

/// Waits for a condition of the current submitter.
async fn submitter_has(scene: &Scene, type_: &str) -> Result<()> {
    eventually(&format!("the submitter is {type_}"), PATIENCE, async || {
        let job = scene.api::<Job>().get("rj").await?;
        let status = job.status.context("no status")?;
        let mut conditions = status.conditions.iter().flatten();
        ensure!(
            conditions.any(|condition| condition.type_ == type_ && condition.status == "True"),
            "{:?}",
            status.conditions
        );
        Ok(())
    })
    .await
}

async fn a_submitter_that_says_failed_while_ray_runs_is_not_believed(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({"backoffLimit": 3})).await?;
    let uid = scene.api::<Job>().get("rj").await?.uid();
    // The submitter's message for a failed job.
    scene.pods_exit("rj", 1).await?;
    eventually("another submitter", PATIENCE, async || {
        let job = scene.api::<Job>().get("rj").await?;
        ensure!(job.uid() != uid, "it is the same");
        ensure!(job.annotations().get("lockstep.dev/ray-job-id") == Some(&seen.job_id));
        Ok(())
    })
    .await?;
    is_untouched(&scene, &seen).await
}

async fn a_submitter_that_has_failed_for_good_leaves_the_end_to_ray(scene: Scene) -> Result<()> {
    let more = json!({"submitterConfig": {"backoffLimit": 0}});
    let seen = running(&scene, more).await?;
    let away = |session: Option<&str>| {
        let session = session.map(str::to_owned);
        dashboard::with(&seen.dashboard_url, |head| head.session = session);
    };
    away(None);
    until(&scene, "that it is away is noticed", |status| {
        status.unreachable_since.is_some()
    })
    .await?;
    scene.pods_exit("rj", 75).await?;
    submitter_has(&scene, "Failed").await?;
    // Ray is back in the same session, and the job has succeeded meanwhile.
    ray_says(&seen, "SUCCEEDED");
    away(Some("s0"));
    let ended = until_phase(&scene, Phase::Complete).await?;
    ensure!(
        (ended.job_status.as_str(), ended.succeeded, ended.failed) == ("SUCCEEDED", 1, 0),
        "{ended:?}"
    );
    Ok(())
}

async fn what_the_submitter_saw_counts_where_ray_is_gone(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    dashboard::with(&seen.dashboard_url, |head| head.session = None);
    until(&scene, "that it is away is noticed", |status| {
        status.unreachable_since.is_some()
    })
    .await?;
    scene.pods_exit("rj", 1).await?;
    let ended = until_phase(&scene, Phase::Failed).await?;
    ensure!(
        (ended.reason.as_str(), ended.job_status.as_str()) == ("AppFailed", "FAILED")
            && ended.message.contains("the submitter reports"),
        "{ended:?}"
    );
    Ok(())
}
