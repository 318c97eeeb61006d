//! State transitions of RayJobs that `job.rs` does not cover: retries on new clusters, deadlines,
//! and ends.

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use kube::ResourceExt;
use kube::api::DeleteParams;
use lockstep_api::JobSet;
use lockstep_api::ray::{RayCluster, RayJob, RayJobDeploymentStatus as Phase};
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::dashboard;
use crate::fixture::{Case, case};
use crate::job::{
    clusters, create, head_runs, patch, ray_is, ray_says, running, status, submits, succeeds, until,
    until_phase,
};
use crate::ray::{Kind, rayjob};
use crate::scene::{PATIENCE, Scene};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_retry_on_a_new_cluster_waits_until_the_old_one_is_gone),
        case!(a_job_that_is_not_submitted_in_time_has_failed),
        case!(a_deadline_that_passes_between_two_attempts_ends_the_job),
        case!(a_job_that_was_stopped_is_complete),
        case!(over_http_a_job_that_ray_refuses_fails_with_its_words),
        case!(a_job_that_is_put_right_starts),
        case!(a_suspension_waits_until_all_is_gone),
        case!(a_suspension_comes_before_the_submission_and_between_two_attempts),
        case!(deletion_does_not_wait_for_a_ray_that_is_away),
        case!(a_job_that_cannot_be_read_any_more_is_stopped_when_it_is_deleted),
        case!(a_job_whose_cluster_is_deleted_has_failed),
    ]
}

const STAYS: &str = "lockstep.dev/test-of-a-slow-end";

/// Keeps an object from being deleted, by a finalizer.
async fn hold<K: Kind>(scene: &Scene, name: &str) -> Result<()> {
    let mut finalizers = scene.api::<K>().get(name).await?.finalizers().to_vec();
    finalizers.push(STAYS.to_owned());
    scene
        .merge::<K>(name, json!({"metadata": {"finalizers": finalizers}}))
        .await?;
    Ok(())
}

/// Removes that finalizer.
async fn let_go<K: Kind>(scene: &Scene, name: &str) -> Result<()> {
    // The garbage collector removes its own finalizer meanwhile.
    eventually("its finalizer is removed", PATIENCE, async || {
        let Some(object) = scene.api::<K>().get_opt(name).await? else {
            return Ok(());
        };
        let finalizers: Vec<_> = object.finalizers().iter().filter(|name| *name != STAYS).collect();
        let version = object.resource_version();
        let patch = json!({"metadata": {"finalizers": finalizers, "resourceVersion": version}});
        scene.merge::<K>(name, patch).await.map(drop)
    })
    .await
}

/// Waits until the object is being deleted. [`hold`] keeps the deletion from completing.
async fn until_deleting<K: Kind>(scene: &Scene, name: &str) -> Result<()> {
    eventually(&format!("{name} is being deleted"), PATIENCE, async || {
        let object = scene.api::<K>().get(name).await?;
        ensure!(object.meta().deletion_timestamp.is_some(), "it is not");
        Ok(())
    })
    .await
}

async fn a_retry_on_a_new_cluster_waits_until_the_old_one_is_gone(scene: Scene) -> Result<()> {
    let more = json!({"backoffLimit": 1, "retryPolicy": "NewCluster"});
    let first = running(&scene, more).await?;
    let old = first.ray_cluster_name.clone();
    hold::<RayCluster>(&scene, &old).await?;
    ray_says(&first, "FAILED");
    until_deleting::<RayCluster>(&scene, &old).await?;
    let seen = status(&scene).await?;
    ensure!(
        seen.job_deployment_status == Some(Phase::Retrying) && seen.job_id != first.job_id,
        "{seen:?}"
    );
    ensure!(clusters(&scene).await? == std::slice::from_ref(&old));
    ensure!(scene.api::<Job>().get_opt("rj").await?.is_none(), "a submitter");
    let_go::<RayCluster>(&scene, &old).await?;
    let seen = until(&scene, "another cluster", |status| {
        status.job_deployment_status == Some(Phase::Initializing) && status.ray_cluster_name != old
    })
    .await?;
    // A session may have the same name as one on the former cluster.
    head_runs(&scene, "s0").await?;
    let second = submits(&scene).await?;
    ensure!(second.dashboard_url != first.dashboard_url, "{second:?}");
    ray_says(&second, "SUCCEEDED");
    let ended = until_phase(&scene, Phase::Complete).await?;
    ensure!(
        (ended.succeeded, ended.failed, ended.num_retries) == (1, 1, 1),
        "{ended:?}"
    );
    ensure!(clusters(&scene).await? == [seen.ray_cluster_name]);
    ensure!(scene.api::<JobSet>().get_opt(&old).await?.is_none());
    Ok(())
}

async fn a_job_that_is_not_submitted_in_time_has_failed(scene: Scene) -> Result<()> {
    create(
        &scene,
        rayjob(0, json!({"preRunningDeadlineSeconds": 5, "backoffLimit": 3})),
    )
    .await?;
    let ended = until_phase(&scene, Phase::Failed).await?;
    ensure!(
        ended.reason == "PreRunningDeadlineExceeded" && ended.deadline_exceeded,
        "{ended:?}"
    );
    ensure!(
        (ended.num_retries, ended.failed) == (0, 1) && ended.job_status.is_empty(),
        "{ended:?}"
    );
    let note = scene
        .until_event_of("RayJob", "PreRunningDeadlineExceeded")
        .await?;
    ensure!(note.contains("preRunningDeadlineSeconds"), "{note}");
    // A head that comes up later gets nothing.
    scene.ray_pods_run("head", 1).await?;
    eventually("the head is known to be ready", PATIENCE, async || {
        let shown = status(&scene).await?.ray_cluster_status.unwrap_or_default();
        ensure!(shown.is_true("HeadPodReady"), "{shown:?}");
        Ok(())
    })
    .await?;
    ensure!(scene.api::<Job>().get_opt("rj").await?.is_none(), "a submitter");
    ensure!(status(&scene).await?.job_deployment_status == Some(Phase::Failed));
    Ok(())
}

async fn a_deadline_that_passes_between_two_attempts_ends_the_job(scene: Scene) -> Result<()> {
    let first = running(&scene, json!({"backoffLimit": 3})).await?;
    ray_says(&first, "FAILED");
    until_phase(&scene, Phase::Retrying).await?;
    patch(&scene, json!({"spec": {"activeDeadlineSeconds": 1}})).await?;
    let ended = until_phase(&scene, Phase::Failed).await?;
    ensure!(
        ended.reason == "DeadlineExceeded" && ended.deadline_exceeded,
        "{ended:?}"
    );
    // The prepared attempt was never created.
    ensure!(
        (ended.num_retries, ended.failed, &ended.job_id) == (0, 1, &first.job_id),
        "{ended:?}"
    );
    // It is not created on a Ray that comes up now either, even if the deadline changes.
    dashboard::with(&first.dashboard_url, |head| head.session = Some("s1".to_owned()));
    patch(&scene, json!({"spec": {"activeDeadlineSeconds": 3600}})).await?;
    let generation = scene.api::<RayJob>().get("rj").await?.metadata.generation;
    let seen = until(&scene, "it is looked at again", |status| {
        Some(status.observed_generation) == generation
    })
    .await?;
    ensure!(seen.job_deployment_status == Some(Phase::Failed), "{seen:?}");
    eventually("there is no submitter", PATIENCE, async || {
        ensure!(scene.api::<Job>().get_opt("rj").await?.is_none(), "there is one");
        Ok(())
    })
    .await
}

async fn a_job_that_was_stopped_is_complete(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({"backoffLimit": 2})).await?;
    ray_says(&seen, "STOPPED");
    let ended = until_phase(&scene, Phase::Complete).await?;
    ensure!(
        (ended.job_status.as_str(), ended.reason.as_str()) == ("STOPPED", ""),
        "{ended:?}"
    );
    ensure!(
        (ended.succeeded, ended.failed, ended.num_retries) == (0, 0, 0) && ended.end_time.is_some(),
        "{ended:?}"
    );
    Ok(())
}

async fn over_http_a_job_that_ray_refuses_fails_with_its_words(scene: Scene) -> Result<()> {
    let more = json!({"submissionMode": "HTTPMode", "backoffLimit": 1});
    create(&scene, rayjob(0, more)).await?;
    scene.ray_pods_run("head", 1).await?;
    let seen = until(&scene, "the dashboard is known", |status| {
        !status.dashboard_url.is_empty()
    })
    .await?;
    let answers = |answer| dashboard::with(&seen.dashboard_url, |head| head.refuses = Some(answer));
    let submitted = || dashboard::with(&seen.dashboard_url, |head| head.submitted.len());
    // Ray is overloaded, which passes.
    answers((429, "too many requests"));
    ray_is(&seen, "s0");
    let waits = until(&scene, "it is said", |status| status.message.contains("429")).await?;
    ensure!(
        waits.job_deployment_status == Some(Phase::Initializing) && waits.failed == 0,
        "{waits:?}"
    );
    // Ray will never accept that: the attempt has failed.
    answers((400, "runtime_env: no such field: pips"));
    let second = until(&scene, "the next attempt is prepared", |status| {
        status.num_retries == 1
    })
    .await?;
    ensure!(second.message.contains("no such field: pips"), "{second:?}");
    let before = submitted();
    ray_is(&seen, "s1");
    let ended = until_phase(&scene, Phase::Failed).await?;
    ensure!(
        ended.reason == "SubmissionFailed" && ended.message.contains("no such field: pips"),
        "{ended:?}"
    );
    ensure!(
        (ended.failed, ended.num_retries) == (2, 1) && submitted() == before + 1,
        "{ended:?}"
    );
    scene.until_event_of("RayJob", "SubmissionFailed").await?;
    Ok(())
}

async fn a_job_that_is_put_right_starts(scene: Scene) -> Result<()> {
    create(&scene, rayjob(0, json!({"submissionMode": "SidecarMode"}))).await?;
    until_phase(&scene, Phase::ValidationFailed).await?;
    ensure!(clusters(&scene).await?.is_empty());
    patch(&scene, json!({"spec": {"submissionMode": "HTTPMode"}})).await?;
    let seen = until_phase(&scene, Phase::Initializing).await?;
    ensure!(
        seen.message.is_empty() && seen.reason.is_empty() && seen.start_time.is_some(),
        "{seen:?}"
    );
    let seen = head_runs(&scene, "s0").await?;
    until_phase(&scene, Phase::Running).await?;
    succeeds(&scene, &seen).await
}

async fn a_suspension_comes_before_the_submission_and_between_two_attempts(scene: Scene) -> Result<()> {
    let suspended = async || {
        let [cluster] =
            <[String; 1]>::try_from(clusters(&scene).await?).map_err(|found| anyhow::anyhow!("{found:?}"))?;
        hold::<RayCluster>(&scene, &cluster).await?;
        patch(&scene, json!({"spec": {"suspend": true}})).await?;
        until_phase(&scene, Phase::Suspending).await?;
        until_deleting::<RayCluster>(&scene, &cluster).await?;
        let_go::<RayCluster>(&scene, &cluster).await?;
        let seen = until_phase(&scene, Phase::Suspended).await?;
        ensure!(seen.job_id.is_empty() && seen.num_retries == 0, "{seen:?}");
        ensure!(clusters(&scene).await?.is_empty());
        ensure!(scene.api::<Job>().get_opt("rj").await?.is_none(), "a submitter");
        Ok(())
    };
    let more = json!({"shutdownAfterJobFinishes": true, "backoffLimit": 1});
    create(&scene, rayjob(0, more)).await?;
    let first = until(&scene, "a cluster is made", |status| {
        status.job_deployment_status == Some(Phase::Initializing) && status.ray_cluster_status.is_some()
    })
    .await?;
    suspended().await?;
    patch(&scene, json!({"spec": {"suspend": false}})).await?;
    let again = until_phase(&scene, Phase::Initializing).await?;
    ensure!(again.job_id == first.job_id, "{again:?}");
    head_runs(&scene, "s0").await?;
    let seen = submits(&scene).await?;
    ray_says(&seen, "FAILED");
    until_phase(&scene, Phase::Retrying).await?;
    suspended().await
}

async fn a_suspension_waits_until_all_is_gone(scene: Scene) -> Result<()> {
    let before = running(&scene, json!({"shutdownAfterJobFinishes": true})).await?;
    let old = before.ray_cluster_name.clone();
    hold::<RayCluster>(&scene, &old).await?;
    patch(&scene, json!({"spec": {"suspend": true}})).await?;
    until_phase(&scene, Phase::Suspending).await?;
    until_deleting::<RayCluster>(&scene, &old).await?;
    // The cluster is half gone: even if the user changes the spec back, the rest is deleted.
    patch(&scene, json!({"spec": {"suspend": false}})).await?;
    eventually("the submitter is gone", PATIENCE, async || {
        ensure!(scene.api::<Job>().get_opt("rj").await?.is_none());
        Ok(())
    })
    .await?;
    let seen = status(&scene).await?;
    ensure!(seen.job_deployment_status == Some(Phase::Suspending), "{seen:?}");
    dashboard::with(&before.dashboard_url, |head| head.session = None);
    let_go::<RayCluster>(&scene, &old).await?;
    scene.until_event_of("RayJob", "Suspended").await?;
    let again = until_phase(&scene, Phase::Initializing).await?;
    ensure!(again.start_time > before.start_time, "{again:?}");
    head_runs(&scene, "s1").await?;
    let seen = submits(&scene).await?;
    succeeds(&scene, &seen).await
}

async fn deletion_does_not_wait_for_a_ray_that_is_away(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    dashboard::with(&seen.dashboard_url, |head| head.session = None);
    let jobs = scene.api::<RayJob>();
    jobs.delete("rj", &DeleteParams::background()).await?;
    eventually("it is gone", PATIENCE * 2, async || {
        ensure!(jobs.get_opt("rj").await?.is_none());
        Ok(())
    })
    .await?;
    eventually("and all with it", PATIENCE, async || {
        let left = clusters(&scene).await?;
        ensure!(left.is_empty(), "{left:?}");
        Ok(())
    })
    .await
}

async fn a_job_that_cannot_be_read_any_more_is_stopped_when_it_is_deleted(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    let broken = json!({"spec": {"rayClusterSpec": {"headGroupSpec": {"template": {"spec": {"containers": "none"}}}}}});
    let broken = broken.to_string();
    let patch = ["patch", "rayjob", "rj", "--type", "merge", "--patch", &broken];
    scene.namespace.kubectl(&patch).await?;
    let note = scene.until_event_of("RayJob", "Unreadable").await?;
    ensure!(note.contains("headGroupSpec.template.spec.containers"), "{note}");
    let stopped = || dashboard::with(&seen.dashboard_url, |head| head.stopped.clone());
    ensure!(stopped().is_empty(), "it is stopped too early");
    let delete = ["delete", "rayjob", "rj", "--wait=false"];
    scene.namespace.kubectl(&delete).await?;
    eventually("it is gone", PATIENCE, async || {
        ensure!(scene.api::<RayJob>().get_opt("rj").await?.is_none());
        Ok(())
    })
    .await?;
    ensure!(stopped() == [seen.job_id.clone()], "{:?}", stopped());
    Ok(())
}

async fn a_job_whose_cluster_is_deleted_has_failed(scene: Scene) -> Result<()> {
    let seen = running(&scene, json!({})).await?;
    // Ray is deleted with it.
    dashboard::with(&seen.dashboard_url, |head| head.session = None);
    let clusters = scene.api::<RayCluster>();
    clusters
        .delete(&seen.ray_cluster_name, &DeleteParams::background())
        .await?;
    let ended = until_phase(&scene, Phase::Failed).await?;
    ensure!(
        ended.reason == "AppFailed" && ended.message.contains("was deleted while the job ran"),
        "{ended:?}"
    );
    Ok(())
}
