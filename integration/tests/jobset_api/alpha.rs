//! Upstream's features that are off by default: execution attempts (KEP-1282), deadlines
//! (KEP-1186), and resources that change while suspended (KEP-1150).

use anyhow::{Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_deadline_without_its_gate_has_no_effect),
        case!(resumptions_and_restarts_are_counted_and_pods_show_them alone),
        case!(a_jobset_that_is_active_for_too_long_fails alone),
        case!(resources_change_while_suspended_and_the_pods_have_them alone),
    ]
}

const EXECUTION_ATTEMPT: &str = "jobset.sigs.k8s.io/execution-attempt";

/// Runs a case with feature gates, and the control plane as it was before after it.
async fn with_gates(scene: &Scene, gates: &str, case: impl AsyncFnOnce() -> Result<()>) -> Result<()> {
    let control_plane = scene.control_plane();
    control_plane.restart_with(&["--feature-gates", gates]).await?;
    let result = case().await;
    control_plane.restart_with(&[]).await?;
    result
}

async fn pod(scene: &Scene) -> Result<Pod> {
    let pods = scene.api::<Pod>().list(&ListParams::default()).await?.items;
    ensure!(pods.len() == 1, "{} pods", pods.len());
    Ok(pods.into_iter().next().unwrap_or_default())
}

async fn suspend(scene: &Scene) -> Result<()> {
    scene.patch(json!({"spec": {"suspend": true}})).await?;
    scene
        .until_condition("Suspended", "True", "SuspendedJobs")
        .await?;
    scene.until_no_pods().await
}

/// The execution attempts in the status, on the only Job, and on its pod.
async fn attempts(scene: &Scene) -> Result<(Option<i32>, Option<String>, Option<String>)> {
    let mark = |annotations: Option<std::collections::BTreeMap<String, String>>| {
        annotations.and_then(|mut all| all.remove(EXECUTION_ATTEMPT))
    };
    let job = scene.api::<Job>().get("js-a-0").await?;
    Ok((
        scene.status().await?.execution_attempts,
        mark(job.metadata.annotations),
        mark(pod(scene).await?.metadata.annotations),
    ))
}

async fn until_attempt(scene: &Scene, attempt: i32) -> Result<()> {
    let mark = Some(attempt.to_string());
    let wanted = (Some(attempt), mark.clone(), mark);
    eventually(&format!("execution attempt {attempt}"), PATIENCE, async || {
        let seen = attempts(scene).await?;
        ensure!(seen == wanted, "{seen:?}");
        Ok(())
    })
    .await
}

async fn a_deadline_without_its_gate_has_no_effect(scene: Scene) -> Result<()> {
    let spec = json!({"activeDeadlineSeconds": 1, "replicatedJobs": [replicated_job("a", 1)]});
    scene.create(jobset(spec)).await?;
    scene.until_jobs(&["js-a-0"], 0).await?;
    let status = scene
        .until_status("a status", |status| !status.replicated_jobs_status.is_empty())
        .await?;
    ensure!(status.start_time.is_none() && status.execution_attempts.is_none());
    Ok(())
}

async fn resumptions_and_restarts_are_counted_and_pods_show_them(scene: Scene) -> Result<()> {
    let scene = &scene;
    with_gates(scene, "ExecutionAttemptsTracking=true", async || {
        let spec = json!({
            "suspend": true, "failurePolicy": {"maxRestarts": 2},
            "replicatedJobs": [replicated_job("a", 1)],
        });
        scene.create(jobset(spec)).await?;
        scene
            .until_condition("Suspended", "True", "SuspendedJobs")
            .await?;
        ensure!(scene.status().await?.execution_attempts.is_none());
        scene.patch(json!({"spec": {"suspend": false}})).await?;
        until_attempt(scene, 0).await?;
        scene.pods_become("js-a-0", "Running").await?;
        suspend(scene).await?;
        scene.patch(json!({"spec": {"suspend": false}})).await?;
        until_attempt(scene, 1).await?;
        scene.pods_become("js-a-0", "Failed").await?;
        scene.until_jobs(&["js-a-0"], 1).await?;
        until_attempt(scene, 2).await?;
        ensure!(scene.status().await?.restarts == 1);
        Ok(())
    })
    .await
}

async fn a_jobset_that_is_active_for_too_long_fails(scene: Scene) -> Result<()> {
    let scene = &scene;
    with_gates(scene, "JobSetActiveDeadlineSeconds=true", async || {
        let spec = json!({
            "activeDeadlineSeconds": 0, "replicatedJobs": [replicated_job("a", 1)],
        });
        let refused = scene.create(jobset(spec)).await.unwrap_err().to_string();
        ensure!(refused.contains("spec.activeDeadlineSeconds"), "{refused}");
        let spec = json!({
            "activeDeadlineSeconds": 3600, "failurePolicy": {"maxRestarts": 9},
            "replicatedJobs": [replicated_job("a", 1)],
        });
        scene.create(jobset(spec)).await?;
        scene
            .until_status("a start time", |status| status.start_time.is_some())
            .await?;
        scene.pods_become("js-a-0", "Running").await?;
        // As with a Job, it may change while it runs.
        scene.patch(json!({"spec": {"activeDeadlineSeconds": 1}})).await?;
        let status = scene
            .until_condition("Failed", "True", "DeadlineExceeded")
            .await?;
        ensure!(status.restarts == 0);
        eventually("its Jobs are deleted", PATIENCE, async || {
            ensure!(scene.jobs().await?.is_empty());
            Ok(())
        })
        .await
    })
    .await
}

async fn resources_change_while_suspended_and_the_pods_have_them(scene: Scene) -> Result<()> {
    let scene = &scene;
    let gate = "MutablePodResourcesForSuspendedJobSets=true";
    let job = |resources: Value| {
        let mut job = replicated_job("a", 1);
        job["template"]["spec"]["template"]["spec"]["containers"][0]["resources"] = resources;
        job
    };
    // Something is added, changed and removed.
    let steps = [
        json!({}),
        json!({"requests": {"cpu": "4", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}),
        json!({"requests": {"cpu": "2"}}),
    ];
    with_gates(scene, gate, async || {
        let [first, others @ ..] = steps;
        scene
            .create(jobset(json!({"replicatedJobs": [job(first)]})))
            .await?;
        scene.pods_become("js-a-0", "Running").await?;
        for next in others {
            let change = json!({"spec": {"replicatedJobs": [job(next.clone())]}});
            suspend(scene).await?;
            scene.patch(change).await?;
            scene.patch(json!({"spec": {"suspend": false}})).await?;
            eventually("the pod has what the JobSet asks for", PATIENCE, async || {
                let spec = pod(scene).await?.spec.unwrap_or_default();
                let resources = spec.containers.into_iter().next().and_then(|one| one.resources);
                ensure!(json!(resources) == next, "{resources:?}");
                Ok(())
            })
            .await?;
            scene.pods_become("js-a-0", "Running").await?;
        }
        Ok(())
    })
    .await
}
