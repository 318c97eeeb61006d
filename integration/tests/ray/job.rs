//! RayJobs. The test plays the kubelet, Ray and the submitter.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::{DeleteParams, ListParams};
use lockstep_api::ray::{RayCluster, RayJob, RayJobDeploymentStatus as Phase, RayJobStatus};
use lockstep_api::{JobSet, annotations};
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::dashboard;
use crate::fixture::{Case, case};
use crate::ray::rayjob;
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_job_runs_to_its_end),
        case!(kuberay_4668_a_failed_job_is_tried_again_on_the_same_cluster),
        case!(kuberay_1489_a_head_that_was_started_anew_is_a_failed_attempt),
        case!(kuberay_2314_a_submitter_that_goes_is_made_again_and_the_job_runs_on),
        case!(kuberay_3211_the_dashboard_is_right),
        case!(a_deadline_stops_the_job_and_is_not_retried),
        case!(a_suspended_job_has_nothing_and_begins_anew),
        case!(deletion_stops_the_job),
        case!(over_http_it_is_submitted_once),
        case!(the_cluster_goes_when_the_job_is_over),
        case!(jobs_of_other_controllers_are_left_alone),
        case!(the_example_applies),
        case!(kuberay_756_a_control_plane_that_is_killed_submits_once alone),
    ]
}

pub(crate) async fn create(scene: &Scene, manifest: Value) -> Result<()> {
    scene.make::<RayJob>(manifest).await?;
    Ok(())
}

pub(crate) async fn patch(scene: &Scene, patch: Value) -> Result<()> {
    scene.merge::<RayJob>("rj", patch).await?;
    Ok(())
}

pub(crate) async fn status(scene: &Scene) -> Result<RayJobStatus> {
    scene
        .api::<RayJob>()
        .get("rj")
        .await?
        .status
        .context("no status yet")
}

pub(crate) async fn until(
    scene: &Scene,
    what: &str,
    expected: impl Fn(&RayJobStatus) -> bool,
) -> Result<RayJobStatus> {
    eventually(what, PATIENCE, async || {
        let status = status(scene).await?;
        ensure!(expected(&status), "{}", serde_json::to_string(&status)?);
        Ok(status)
    })
    .await
}

pub(crate) async fn until_phase(scene: &Scene, phase: Phase) -> Result<RayJobStatus> {
    until(scene, &format!("the job is {phase}"), |status| {
        status.job_deployment_status.as_ref() == Some(&phase)
    })
    .await
}

/// Waits for the head's pod, and makes it run with a Ray that answers in this session.
pub(crate) async fn head_runs(scene: &Scene, session: &str) -> Result<RayJobStatus> {
    scene.ray_pods_run("head", 1).await?;
    let status = until(scene, "the dashboard is known", |status| {
        !status.dashboard_url.is_empty()
    })
    .await?;
    ray_is(&status, session);
    Ok(status)
}

/// Makes Ray answer in this session without any job.
pub(crate) fn ray_is(status: &RayJobStatus, session: &str) {
    dashboard::with(&status.dashboard_url, |head| {
        head.session = Some(session.to_owned());
        head.jobs.clear();
    });
}

/// Sets what Ray reports of the current attempt.
pub(crate) fn ray_says(status: &RayJobStatus, says: &str) {
    dashboard::with(&status.dashboard_url, |head| {
        head.jobs.insert(status.job_id.clone(), says.to_owned());
    });
}

/// Plays the submitter: waits until it exists for the current attempt, and submits the job.
pub(crate) async fn submits(scene: &Scene) -> Result<RayJobStatus> {
    let submitter = eventually("the submitter is there", PATIENCE, async || {
        let status = status(scene).await?;
        ensure!(status.job_deployment_status == Some(Phase::Running), "{status:?}");
        let job = scene.api::<Job>().get("rj").await?;
        ensure!(
            job.annotations().get("lockstep.dev/ray-job-id") == Some(&status.job_id),
            "another's"
        );
        Ok(job)
    })
    .await?;
    let status = status(scene).await?;
    let pod = submitter
        .spec
        .and_then(|spec| spec.template.spec)
        .unwrap_or_default();
    let env = pod.containers[0].env.iter().flatten();
    let session = env
        .into_iter()
        .find(|variable| variable.name == "RAYJOB_SESSION")
        .and_then(|found| found.value.clone());
    ensure!(
        session.as_ref() == Some(&status.session),
        "{session:?} {status:?}"
    );
    ray_says(&status, "RUNNING");
    until(scene, "Ray runs the job", |status| status.job_status == "RUNNING").await
}

/// A job that Ray runs.
pub(crate) async fn running(scene: &Scene, more: Value) -> Result<RayJobStatus> {
    create(scene, rayjob(0, more)).await?;
    head_runs(scene, "s0").await?;
    submits(scene).await
}

/// Names of the RayClusters.
pub(crate) async fn clusters(scene: &Scene) -> Result<Vec<String>> {
    let clusters = scene
        .api::<RayCluster>()
        .list(&ListParams::default())
        .await?
        .items;
    Ok(clusters.iter().map(ResourceExt::name_any).collect())
}

async fn a_job_runs_to_its_end(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    ensure!(
        seen.start_time.is_some() && seen.ray_job_info.start_time.is_some(),
        "{seen:?}"
    );
    let clusters = clusters(&scene).await?;
    ensure!(
        clusters == std::slice::from_ref(&seen.ray_cluster_name),
        "{clusters:?}"
    );
    ray_says(&seen, "SUCCEEDED");
    let seen = until_phase(&scene, Phase::Complete).await?;
    ensure!(
        (seen.job_status.as_str(), seen.succeeded, seen.failed) == ("SUCCEEDED", 1, 0),
        "{seen:?}"
    );
    ensure!(
        seen.end_time.is_some() && seen.message == "it is SUCCEEDED",
        "{seen:?}"
    );
    scene.until_event_of("RayJob", "Complete").await?;
    let shown = scene.namespace.kubectl(&["get", "rayjob", "rj"]).await?;
    ensure!(
        shown.contains("SUCCEEDED") && shown.contains("Complete"),
        "{shown}"
    );
    Ok(())
}

async fn kuberay_4668_a_failed_job_is_tried_again_on_the_same_cluster(scene: Scene) -> Result<()> {
    let first = running(&scene, json!({"backoffLimit": 1})).await?;
    ray_says(&first, "FAILED");
    let second = until_phase(&scene, Phase::Retrying).await?;
    ensure!(
        second.num_retries == 1 && second.job_id != first.job_id,
        "{second:?}"
    );
    let jobset = eventually("a restart in place is asked for", PATIENCE, async || {
        let jobset = scene.api::<JobSet>().get(&first.ray_cluster_name).await?;
        ensure!(jobset.annotation(annotations::RESTART_REQUEST) == Some(second.job_id.as_str()));
        Ok(jobset)
    })
    .await?;
    ray_is(&second, "s1");
    submits(&scene).await?;
    ray_says(&second, "SUCCEEDED");
    let seen = until_phase(&scene, Phase::Complete).await?;
    ensure!(
        (seen.succeeded, seen.failed, seen.num_retries) == (1, 1, 1),
        "{seen:?}"
    );
    let same = scene.api::<JobSet>().get(&first.ray_cluster_name).await?;
    ensure!(same.uid() == jobset.uid() && clusters(&scene).await?.len() == 1);
    Ok(())
}

async fn kuberay_1489_a_head_that_was_started_anew_is_a_failed_attempt(scene: Scene) -> Result<()> {
    let first = running(&scene, json!({"backoffLimit": 1})).await?;
    ray_is(&first, "s1");
    let second = until(&scene, "it is noticed", |status| status.num_retries == 1).await?;
    ensure!(second.message.contains("the head restarted"), "{second:?}");
    submits(&scene).await?;
    ray_is(&first, "s2");
    let seen = until_phase(&scene, Phase::Failed).await?;
    ensure!(seen.reason == "HeadRestarted", "{seen:?}");
    Ok(())
}

async fn kuberay_2314_a_submitter_that_goes_is_made_again_and_the_job_runs_on(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    let before = scene.api::<Job>().get("rj").await?.uid();
    scene
        .api::<Job>()
        .delete("rj", &DeleteParams::background())
        .await?;
    eventually("another submitter is there", PATIENCE, async || {
        ensure!(scene.api::<Job>().get("rj").await?.uid() != before);
        Ok(())
    })
    .await?;
    let now = status(&scene).await?;
    ensure!(
        (now.job_id.as_str(), now.failed) == (seen.job_id.as_str(), 0),
        "{now:?}"
    );
    succeeds(&scene, &seen).await
}

/// Lets the job succeed, and checks that it was never stopped.
pub(crate) async fn succeeds(scene: &Scene, seen: &RayJobStatus) -> Result<()> {
    ray_says(seen, "SUCCEEDED");
    until_phase(scene, Phase::Complete).await?;
    let stopped = dashboard::with(&seen.dashboard_url, |head| head.stopped.clone());
    ensure!(stopped.is_empty(), "{stopped:?}");
    Ok(())
}

async fn kuberay_3211_the_dashboard_is_right(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    scene.pods_become("rj", "Succeeded").await?;
    ray_says(&seen, "FAILED");
    let seen = until_phase(&scene, Phase::Failed).await?;
    ensure!(
        (seen.reason.as_str(), seen.succeeded) == ("AppFailed", 0),
        "{seen:?}"
    );
    Ok(())
}

async fn a_deadline_stops_the_job_and_is_not_retried(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({"backoffLimit": 3})).await?;
    // The deadline counts from the beginning, so this one has passed. If it were set at creation,
    // it might pass before anything runs.
    patch(&scene, json!({"spec": {"activeDeadlineSeconds": 1}})).await?;
    let ended = until_phase(&scene, Phase::Failed).await?;
    ensure!(
        ended.reason == "DeadlineExceeded" && ended.deadline_exceeded && ended.num_retries == 0,
        "{ended:?}"
    );
    let stopped = dashboard::with(&seen.dashboard_url, |head| head.stopped.clone());
    ensure!(stopped == [seen.job_id], "{stopped:?}");
    until(&scene, "Ray has stopped it", |status| {
        status.job_status == "STOPPED"
    })
    .await?;
    Ok(())
}

async fn a_suspended_job_has_nothing_and_begins_anew(scene: Scene) -> Result<()> {
    let before = running(&scene, json!({"shutdownAfterJobFinishes": true})).await?;
    patch(&scene, json!({"spec": {"suspend": true}})).await?;
    until_phase(&scene, Phase::Suspended).await?;
    // Its head is gone; the next head has the same name.
    dashboard::with(&before.dashboard_url, |head| head.session = None);
    ensure!(clusters(&scene).await?.is_empty());
    ensure!(scene.api::<Job>().get_opt("rj").await?.is_none());
    patch(&scene, json!({"spec": {"suspend": false}})).await?;
    head_runs(&scene, "s1").await?;
    let seen = submits(&scene).await?;
    ray_says(&seen, "SUCCEEDED");
    until_phase(&scene, Phase::Complete).await?;
    Ok(())
}

/// Deletes the RayJob, and waits until it is gone.
pub(crate) async fn delete(scene: &Scene) -> Result<()> {
    scene
        .api::<RayJob>()
        .delete("rj", &DeleteParams::background())
        .await?;
    eventually("it is gone", PATIENCE, async || {
        ensure!(scene.api::<RayJob>().get_opt("rj").await?.is_none());
        Ok(())
    })
    .await
}

async fn deletion_stops_the_job(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    delete(&scene).await?;
    let stopped = dashboard::with(&seen.dashboard_url, |head| head.stopped.clone());
    ensure!(stopped == [seen.job_id], "{stopped:?}");
    Ok(())
}

/// Byte for byte: no kubelet expands what travels by HTTP.
async fn over_http_it_is_submitted_once(scene: Scene) -> Result<()> {
    let entrypoint = r#"echo 'a$$b $(RAYJOB_ATTEMPT)'; echo "$PASSWORD""#;
    let more = json!({
        "submissionMode": "HTTPMode",
        "entrypoint": entrypoint,
        "runtimeEnvYAML": "env_vars: {PASSWORD: \"pa$$w0rd\"}",
        "metadata": {"k": "v$$"},
    });
    create(&scene, rayjob(0, more)).await?;
    let seen = head_runs(&scene, "s0").await?;
    until(&scene, "Ray has it", |status| status.job_status == "PENDING").await?;
    ray_says(&seen, "SUCCEEDED");
    until_phase(&scene, Phase::Complete).await?;
    let submitted = dashboard::with(&seen.dashboard_url, |head| head.submitted.clone());
    let [body] = submitted.as_slice() else {
        anyhow::bail!("{submitted:?}");
    };
    ensure!(
        body["submission_id"] == seen.job_id && body["entrypoint"] == entrypoint,
        "{body}"
    );
    ensure!(
        body["runtime_env"]["env_vars"]["PASSWORD"] == "pa$$w0rd" && body["metadata"]["k"] == "v$$",
        "{body}"
    );
    ensure!(scene.api::<Job>().get_opt("rj").await?.is_none());
    Ok(())
}

async fn the_cluster_goes_when_the_job_is_over(scene: Scene) -> Result<()> {
    let more = json!({"shutdownAfterJobFinishes": true, "ttlSecondsAfterFinished": 1});
    let seen = running(&scene, more).await?;
    ray_says(&seen, "SUCCEEDED");
    until_phase(&scene, Phase::Complete).await?;
    scene.pods_become("rj", "Succeeded").await?;
    eventually("the cluster is gone", PATIENCE, async || {
        ensure!(clusters(&scene).await?.is_empty());
        Ok(())
    })
    .await?;
    ensure!(
        scene.api::<Job>().get_opt("rj").await?.is_some(),
        "the logs are gone"
    );
    Ok(())
}

async fn jobs_of_other_controllers_are_left_alone(scene: Scene) -> Result<()> {
    create(
        &scene,
        rayjob(0, json!({"managedBy": "kueue.x-k8s.io/multikueue"})),
    )
    .await?;
    scene.until_event_of("RayJob", "ManagedByAnother").await?;
    let job = scene.api::<RayJob>().get("rj").await?;
    ensure!(
        job.status.is_none() && job.metadata.finalizers.is_none(),
        "{job:?}"
    );
    Ok(())
}

async fn the_example_applies(scene: Scene) -> Result<()> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/ray/job.yaml");
    let file = file.to_string_lossy();
    scene.namespace.kubectl(&["apply", "--filename", &file]).await?;
    scene.ray_pods_run("head", 1).await?;
    scene.ray_pods_run("worker", 2).await?;
    Ok(())
}

async fn kuberay_756_a_control_plane_that_is_killed_submits_once(scene: Scene) -> Result<()> {
    async fn again(scene: &Scene) -> Result<()> {
        scene.control_plane().kill().await?;
        scene.control_plane().start().await
    }
    create(&scene, rayjob(0, json!({"submissionMode": "HTTPMode"}))).await?;
    again(&scene).await?;
    scene.ray_pods_run("head", 1).await?;
    again(&scene).await?;
    let seen = until(&scene, "the dashboard is known", |status| {
        !status.dashboard_url.is_empty()
    })
    .await?;
    ray_is(&seen, "s0");
    until(&scene, "the session is known", |status| status.session == "s0").await?;
    again(&scene).await?;
    until(&scene, "Ray has it", |status| status.job_status == "PENDING").await?;
    again(&scene).await?;
    ray_says(&seen, "SUCCEEDED");
    let ended = until_phase(&scene, Phase::Complete).await?;
    ensure!(
        ended.job_id == seen.job_id && clusters(&scene).await?.len() == 1,
        "{ended:?}"
    );
    let submitted = dashboard::with(&seen.dashboard_url, |head| head.submitted.clone());
    ensure!(submitted.len() == 1, "{submitted:?}");
    Ok(())
}
