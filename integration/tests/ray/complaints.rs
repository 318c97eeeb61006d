//! Complaints of KubeRay's users, by the number of the issue, unless `job.rs` tests them.

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{ListParams, Patch, PatchParams};
use lockstep_api::ray::{RayCluster, RayJobDeploymentStatus as Phase, RayJobStatus, conditions};
use lockstep_api::{JobSet, annotations};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::dashboard;
use crate::fixture::{Case, case};
use crate::job::{
    create, head_runs, ray_is, ray_says, running, status, submits, succeeds, until, until_phase,
};
use crate::ray::rayjob;
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(kuberay_2317_a_submitter_that_fails_is_not_the_job),
        case!(kuberay_3903_a_head_that_was_away_and_is_another_ends_the_attempt),
        case!(kuberay_4199_the_head_is_enough),
        case!(kuberay_4199_all_pods_are_waited_for_where_that_is_asked_for),
        case!(kuberay_4637_a_head_that_never_starts_fails_the_job),
        case!(kuberay_4971_each_retry_keeps_the_pods),
        case!(kuberay_5211_the_next_attempt_waits_for_another_ray),
    ]
}

async fn kuberay_2317_a_submitter_that_fails_is_not_the_job(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({"submitterConfig": {"backoffLimit": 0}})).await?;
    let before = scene.api::<Job>().get("rj").await?.uid();
    scene.pods_exit("rj", 75).await?;
    eventually("another submitter of the same job", PATIENCE, async || {
        let job = scene.api::<Job>().get("rj").await?;
        ensure!(job.uid() != before, "it is the same");
        ensure!(job.annotations().get("lockstep.dev/ray-job-id") == Some(&seen.job_id));
        Ok(())
    })
    .await?;
    let now = status(&scene).await?;
    ensure!(
        (now.job_status.as_str(), now.failed, now.num_retries) == ("RUNNING", 0, 0),
        "{now:?}"
    );
    succeeds(&scene, &seen).await
}

async fn kuberay_3903_a_head_that_was_away_and_is_another_ends_the_attempt(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    dashboard::with(&seen.dashboard_url, |head| head.session = None);
    until(&scene, "that it is away is noticed", |status| {
        status.unreachable_since.is_some()
    })
    .await?;
    ray_is(&seen, "s1");
    let ended = until_phase(&scene, Phase::Failed).await?;
    ensure!(ended.reason == "HeadRestarted", "{ended:?}");
    Ok(())
}

async fn kuberay_4199_the_head_is_enough(scene: Scene) -> Result<()> {
    create(&scene, rayjob(1, json!({}))).await?;
    head_runs(&scene, "s0").await?;
    submits(&scene).await?;
    let cluster = cluster_of(&scene).await?.status.unwrap_or_default();
    ensure!(cluster.ready_worker_replicas == 0, "{cluster:?}");
    Ok(())
}

async fn kuberay_4199_all_pods_are_waited_for_where_that_is_asked_for(scene: Scene) -> Result<()> {
    create(&scene, rayjob(2, json!({"waitForAllPodsHealthy": true}))).await?;
    scene.ray_pods_run("head", 1).await?;
    eventually("the head is known to be ready", PATIENCE, async || {
        let cluster = cluster_of(&scene).await?.status.unwrap_or_default();
        ensure!(cluster.is_true(conditions::HEAD_POD_READY), "{cluster:?}");
        Ok(())
    })
    .await?;
    let seen = status(&scene).await?;
    ensure!(
        seen.job_deployment_status == Some(Phase::Initializing) && seen.dashboard_url.is_empty(),
        "{seen:?}"
    );
    scene.ray_pods_run("worker", 2).await?;
    let seen = until(&scene, "the dashboard is known", |status| {
        !status.dashboard_url.is_empty()
    })
    .await?;
    ray_is(&seen, "s0");
    submits(&scene).await?;
    Ok(())
}

/// Plays a kubelet that restarts a container of the head again and again, and then one that rejects
/// the head's pods.
async fn kuberay_4637_a_head_that_never_starts_fails_the_job(scene: Scene) -> Result<()> {
    create(&scene, rayjob(1, json!({"backoffLimit": 1}))).await?;
    let restarted = json!({"containerStatuses": [{
        "name": "ray", "image": "none", "imageID": "", "ready": false, "restartCount": 4,
        "state": {"waiting": {"reason": "CrashLoopBackOff"}},
    }]});
    eventually("the next attempt", PATIENCE, async || {
        heads_show(&scene, &restarted).await?;
        let seen = status(&scene).await?;
        ensure!(seen.num_retries == 1, "{seen:?}");
        Ok(())
    })
    .await?;
    // The Job controller waits ever longer between two pods.
    let refused = json!({"phase": "Failed", "reason": "UnexpectedAdmissionError"});
    let ended = eventually("the job has failed", PATIENCE * 3, async || {
        heads_show(&scene, &refused).await?;
        let seen = status(&scene).await?;
        ensure!(seen.job_deployment_status == Some(Phase::Failed), "{seen:?}");
        Ok(seen)
    })
    .await?;
    ensure!(
        (ended.reason.as_str(), ended.failed, ended.num_retries) == ("SubmissionFailed", 2, 1)
            && ended.message.contains("the head has failed"),
        "{ended:?}"
    );
    // Each attempt has a cluster of its own, and no two exist at once.
    let clusters = scene
        .api::<RayCluster>()
        .list(&ListParams::default())
        .await?
        .items;
    let names: Vec<String> = clusters.iter().map(ResourceExt::name_any).collect();
    ensure!(names == [ended.ray_cluster_name], "{names:?}");
    Ok(())
}

async fn kuberay_4971_each_retry_keeps_the_pods(scene: Scene) -> Result<()> {
    create(&scene, rayjob(1, json!({"backoffLimit": 2}))).await?;
    head_runs(&scene, "s0").await?;
    scene.ray_pods_run("worker", 1).await?;
    let first = submits(&scene).await?;
    let before = pods(&scene).await?;
    for session in ["s1", "s2"] {
        fails(&scene).await?;
        ray_is(&first, session);
        submits(&scene).await?;
    }
    let seen = status(&scene).await?;
    ensure!(
        (seen.num_retries, &seen.ray_cluster_name) == (2, &first.ray_cluster_name),
        "{seen:?}"
    );
    let after = pods(&scene).await?;
    ensure!(
        before.len() == 2 && after == before,
        "{before:?} became {after:?}"
    );
    Ok(())
}

async fn kuberay_5211_the_next_attempt_waits_for_another_ray(scene: Scene) -> Result<()> {
    let first = running(&scene, json!({"backoffLimit": 1})).await?;
    let second = fails(&scene).await?;
    eventually("a restart in place is asked for", PATIENCE, async || {
        let jobset = scene.api::<JobSet>().get(&first.ray_cluster_name).await?;
        ensure!(jobset.annotation(annotations::RESTART_REQUEST) == Some(second.job_id.as_str()));
        Ok(())
    })
    .await?;
    // The old Ray process, not restarted, answers however often the control plane asks.
    let asked = || dashboard::with(&first.dashboard_url, |head| head.asked);
    let before = asked();
    eventually("it is asked again and again", PATIENCE, async || {
        ensure!(asked() >= before + 3, "{} times", asked() - before);
        Ok(())
    })
    .await?;
    let seen = status(&scene).await?;
    ensure!(seen.job_deployment_status == Some(Phase::Retrying), "{seen:?}");
    ensure!(scene.api::<Job>().get_opt("rj").await?.is_none());
    ray_is(&first, "s1");
    submits(&scene).await?;
    Ok(())
}

/// Ray reports that the attempt has failed. Returns the status with the next attempt prepared.
async fn fails(scene: &Scene) -> Result<RayJobStatus> {
    let seen = status(scene).await?;
    ray_says(&seen, "FAILED");
    until(scene, "the next attempt is prepared", |status| {
        status.job_deployment_status == Some(Phase::Retrying) && status.job_id != seen.job_id
    })
    .await
}

async fn cluster_of(scene: &Scene) -> Result<RayCluster> {
    let name = status(scene).await?.ray_cluster_name;
    Ok(scene.api::<RayCluster>().get(&name).await?)
}

/// Plays the kubelet: writes the status of the head's pods.
async fn heads_show(scene: &Scene, status: &Value) -> Result<()> {
    let patch = Patch::Merge(json!({"status": status}));
    for pod in scene.ray_pods("head").await? {
        let shown = scene
            .api::<Pod>()
            .patch_status(&pod.name_any(), &PatchParams::default(), &patch)
            .await;
        shown?;
    }
    Ok(())
}

/// UIDs of Ray's pods.
async fn pods(scene: &Scene) -> Result<Vec<Option<String>>> {
    let of_ray = ListParams::default().labels("ray.io/is-ray-node=yes");
    let pods = scene.api::<Pod>().list(&of_ray).await?.items;
    Ok(pods.iter().map(ResourceExt::uid).collect())
}
