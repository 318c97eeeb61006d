//! How workers end for good, and how Kubernetes learns of it.

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::{START, Worker, container_status};
use lockstep_integration::harness::manifest::CONTAINER;
use lockstep_integration::harness::{Group, Manifest, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(exit_0_completes),
        case!(done_after_a_restart_completes),
        case!(a_job_that_succeeds_early_ends_its_other_workers_without_a_restart),
        case!(exit_code_reaches_the_failure_policy),
    ]
}

/// A worker that runs until a signal tells it how to end.
const OBEDIENT: &str = r#"
    trap 'echo leaving; exit 0' USR1
    trap 'exit 42' USR2
    while :; do sleep 1000000 & wait $!; done"#;

async fn exit_0_completes(scene: Scene) -> Result<()> {
    for policy in ["OnFailure", "Never"] {
        let manifest = Manifest::new(3, "echo working; sleep 1")
            .named(&policy.to_lowercase())
            .restart_policy(policy);
        completes(&scene.apply(&manifest).await?, 3).await?;
    }
    Ok(())
}

async fn done_after_a_restart_completes(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(2, OBEDIENT)).await?;
    let before = group.running(2).await?;
    before[0].signal(Signal::SIGKILL)?;
    for worker in group.restarted_in_place(&before, 1).await? {
        // It has only just started, and a signal before its traps would end it as a failure.
        obeys(&worker).await?;
        worker.signal(Signal::SIGUSR1)?;
    }
    completes(&group, 2).await?;
    group.status_has("/inPlaceRestart/restarts", 1).await
}

/// Waits until a worker has set its traps. The last one is for SIGUSR2.
async fn obeys(worker: &Worker) -> Result<()> {
    let path = format!("/proc/{}/status", worker.process.pid);
    eventually("the worker has its traps", START, async || {
        let status = tokio::fs::read_to_string(&path).await?;
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = u64::from_str_radix(caught.context("no signals")?.trim(), 16)?;
        ensure!(caught >> (Signal::SIGUSR2 as u32 - 1) & 1 == 1, "{status}");
        Ok(())
    })
    .await
}

async fn a_job_that_succeeds_early_ends_its_other_workers_without_a_restart(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(3, OBEDIENT)
        .job(json!({"successPolicy": {"rules": [{"succeededIndexes": "0"}]}}))
        .max_restarts(0);
    let group = scene.apply(&manifest).await?;
    let workers = group.running(3).await?;
    obeys(&workers[0]).await?;
    workers[0].signal(Signal::SIGUSR1)?;
    let (reason, message) = group.condition("Completed", START).await?;
    ensure!(reason == "AllJobsCompleted", "{reason}: {message}");
    group.status_has("/inPlaceRestart/restarts", 0).await?;
    let told = group.events("RestartedInPlace").await?;
    ensure!(told.is_empty(), "{told:?}");
    Ok(())
}

async fn completes(group: &Group, workers: i32) -> Result<()> {
    let (reason, message) = group.condition("Completed", START).await?;
    ensure!(reason == "AllJobsCompleted", "{reason}: {message}");
    group.status_has("/terminalState", "Completed").await?;
    let jobs = group.jobs().await?;
    let status = jobs
        .first()
        .and_then(|job| job.status.as_ref())
        .context("the Job has no status")?;
    ensure!(
        status.succeeded == Some(workers) && status.failed.unwrap_or_default() == 0,
        "{status:?}"
    );
    for pod in group.pods().await? {
        let status = container_status(&pod, CONTAINER).context("no container status")?;
        let ended = status
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .context("still runs")?;
        ensure!(ended.exit_code == 0 && status.restart_count == 0, "{status:?}");
    }
    Ok(())
}

async fn exit_code_reaches_the_failure_policy(scene: Scene) -> Result<()> {
    let rule = json!({"action": "FailJob", "onExitCodes": {"containerName": CONTAINER, "operator": "In", "values": [42]}});
    let manifest = Manifest::new(2, OBEDIENT)
        .restart_policy("Never")
        .job(json!({"podFailurePolicy": {"rules": [rule]}}))
        .max_restarts(0);
    let group = scene.apply(&manifest).await?;
    let workers = group.running(2).await?;
    obeys(&workers[1]).await?;
    workers[1].signal(Signal::SIGUSR2)?;

    let pod = &workers[1].place.pod;
    eventually("the exit code is in the pod's status", START, async || {
        let pods = group.pods().await?;
        // The pod may have gone with its Job already: the event below shows its code too.
        let mut pods = pods.iter();
        let Some(pod) = pods.find(|found| found.metadata.name.as_ref() == Some(pod)) else {
            return Ok(());
        };
        let status = container_status(pod, CONTAINER).context("no status")?;
        let ended = status
            .state
            .as_ref()
            .and_then(|state| state.terminated.as_ref())
            .context("still runs")?;
        ensure!(ended.exit_code == 42, "{ended:?}");
        Ok(())
    })
    .await?;
    // The JobSet deletes its Jobs when it fails. An event keeps the Job controller's decision.
    eventually("the Job fails by its podFailurePolicy", START, async || {
        let said = scene
            .namespace
            .kubectl(&["get", "events", "--field-selector", "reason=PodFailurePolicy"])
            .await?;
        ensure!(
            said.contains("exit code 42 matching FailJob rule"),
            "events are {said:?}"
        );
        Ok(())
    })
    .await?;
    let (_, message) = group.condition("Failed", START).await?;
    ensure!(
        !message.contains(&workers[0].place.pod),
        "the wrong worker is blamed: {message}"
    );
    group.status_has("/inPlaceRestart/restarts", 0).await
}
