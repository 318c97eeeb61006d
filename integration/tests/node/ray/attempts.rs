//! Jobs that fail, run out of time, and lose their submitter or their head.

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::eventually;
use nix::sys::signal::Signal;
use serde_json::json;

use super::{PATIENCE, create, ended, has, logs, pods, program_of, rayjob, with_ray};
use crate::support::{Case, Scene, case};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(a_failed_job_is_tried_again_in_place alone),
        case!(a_deadline_stops_the_job alone),
        case!(a_job_outlives_its_submitter alone),
        case!(a_job_is_tried_again_when_its_head_dies alone),
    ]
}

async fn a_failed_job_is_tried_again_in_place(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    let mut manifest = rayjob(
        r#"sh -c 'echo attempt $RAYJOB_ATTEMPT; test "$RAYJOB_ATTEMPT" = 1'"#,
        1,
    );
    manifest["spec"]["backoffLimit"] = json!(1);
    create(namespace, &manifest).await?;
    has(namespace, "/jobDeploymentStatus", &json!("Running")).await?;
    let before = eventually("head and worker run", PATIENCE, async || {
        let pods = pods(namespace).await?;
        let run = pods.iter().all(|(_, _, container)| !container.is_empty());
        ensure!(pods.len() == 2 && run, "{pods:?}");
        Ok(pods)
    })
    .await?;
    let status = ended(namespace, "Complete").await?;
    ensure!(
        status["jobStatus"] == "SUCCEEDED" && status["numRetries"] == 1,
        "{status}"
    );
    let after = pods(namespace).await?;
    ensure!(
        before.len() == 2 && after == before,
        "{before:?} became {after:?}"
    );
    let logs = logs(namespace).await?;
    ensure!(logs.contains("attempt 1"), "{logs}");
    Ok(())
}

async fn a_deadline_stops_the_job(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    let mut manifest = rayjob("sleep 4242", 0);
    manifest["spec"]["backoffLimit"] = json!(3);
    manifest["spec"]["activeDeadlineSeconds"] = json!(60);
    create(namespace, &manifest).await?;
    has(namespace, "/jobStatus", &json!("RUNNING")).await?;
    let status = ended(namespace, "Failed").await?;
    ensure!(
        status["reason"] == "DeadlineExceeded" && status["numRetries"].as_i64().unwrap_or(0) == 0,
        "{status}"
    );
    has(namespace, "/jobStatus", &json!("STOPPED")).await
}

async fn a_job_outlives_its_submitter(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    // The driver says when it began, and how often it did.
    let script = "echo began >> /tmp/began; sleep 15; echo began $(wc -l < /tmp/began) times";
    create(namespace, &rayjob(&format!("sh -c '{script}'"), 0)).await?;
    has(namespace, "/jobStatus", &json!("RUNNING")).await?;
    let of_submitter = ["--selector", "batch.kubernetes.io/job-name=rj"];
    namespace
        .kubectl(
            &[
                &["delete", "pod", "--grace-period=0", "--force"][..],
                &of_submitter,
            ]
            .concat(),
        )
        .await?;
    let status = ended(namespace, "Complete").await?;
    ensure!(
        status["jobStatus"] == "SUCCEEDED" && status["numRetries"].as_i64().unwrap_or(0) == 0,
        "{status}"
    );
    let logs = logs(namespace).await?;
    ensure!(logs.contains("began 1 times"), "{logs}");
    Ok(())
}

async fn a_job_is_tried_again_when_its_head_dies(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    let mut manifest = rayjob(r#"sh -c 'test "$RAYJOB_ATTEMPT" = 1 || sleep 4242'"#, 1);
    manifest["spec"]["backoffLimit"] = json!(1);
    create(namespace, &manifest).await?;
    has(namespace, "/jobStatus", &json!("RUNNING")).await?;
    let before = pods(namespace).await?;
    let (_, _, head) = before
        .iter()
        .find(|(name, ..)| name.contains("-head-"))
        .context("no head")?;
    let gcs = program_of(head, "gcs_server").context("no GCS in the head")?;
    gcs.signal(Signal::SIGKILL)?;
    let status = ended(namespace, "Complete").await?;
    ensure!(
        status["jobStatus"] == "SUCCEEDED" && status["numRetries"] == 1,
        "{status}"
    );
    let after = pods(namespace).await?;
    ensure!(after == before, "{before:?} became {after:?}");
    Ok(())
}
