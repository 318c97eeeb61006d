//! Jobs that fail, time out, and lose their submitter or their head.

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::eventually;
use nix::sys::signal::Signal;
use serde_json::json;

use super::{
    PATIENCE, create, ended, has, is_head, logs, pods, programs, rayjob, retries, submissions, with_ray,
};
use crate::support::{Case, Part, Scene, case};

pub(super) fn cases() -> Vec<Case> {
    vec![
        case!(a_failed_job_is_tried_again_in_place alone),
        case!(a_deadline_stops_the_job alone),
        case!(a_job_outlives_its_submitter_and_the_control_plane alone),
        case!(a_job_is_tried_again_when_its_head_dies alone),
    ]
}

async fn a_failed_job_is_tried_again_in_place(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    let script = r#"sh -c 'echo attempt $RAYJOB_ATTEMPT; test "$RAYJOB_ATTEMPT" -ge 1'"#;
    create(namespace, &rayjob(script, 1)).await?;
    has(namespace, "/jobDeploymentStatus", &json!("Running")).await?;
    let before = eventually("head and worker run", PATIENCE, async || {
        let pods = pods(namespace).await?;
        let run = pods.iter().all(|(_, _, container)| !container.is_empty());
        ensure!(pods.len() == 2 && run, "{pods:?}");
        Ok(pods)
    })
    .await?;
    let status = ended(namespace, "Complete").await?;
    let last = retries(&status);
    ensure!(status["jobStatus"] == "SUCCEEDED" && last >= 1, "{status}");
    let after = pods(namespace).await?;
    ensure!(
        before.len() == 2 && after == before,
        "{before:?} became {after:?}"
    );
    let logs = logs(namespace).await?;
    ensure!(logs.contains(&format!("attempt {last}")), "{logs}");
    Ok(())
}

async fn a_deadline_stops_the_job(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    create(namespace, &rayjob("sleep 4242", 0)).await?;
    let running = has(namespace, "/jobStatus", &json!("RUNNING")).await?;
    // The deadline is set once the job runs: how long Ray takes to start depends on the node.
    let deadline = json!({"spec": {"activeDeadlineSeconds": 1}}).to_string();
    namespace
        .kubectl(&["patch", "rayjob", "rj", "--type=merge", "--patch", &deadline])
        .await?;
    let status = ended(namespace, "Failed").await?;
    ensure!(
        status["reason"] == "DeadlineExceeded" && retries(&status) == retries(&running),
        "{status}"
    );
    has(namespace, "/jobStatus", &json!("STOPPED")).await.map(drop)
}

/// KubeRay 756: the job is submitted once, even if the submitter or the control plane dies then or
/// later.
async fn a_job_outlives_its_submitter_and_the_control_plane(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    // The driver prints that it began, and how often it has begun.
    let file = "/tmp/began-$RAYJOB_ATTEMPT";
    let script = format!("echo began >> {file}; sleep 15; echo began $(wc -l < {file}) times");
    create(namespace, &rayjob(&format!("sh -c '{script}'"), 0)).await?;
    has(namespace, "/jobDeploymentStatus", &json!("Running")).await?;
    let running = has(namespace, "/jobStatus", &json!("RUNNING")).await?;
    scene.product.kill(Part::ControlPlane).await?;
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
        status["jobStatus"] == "SUCCEEDED" && status["jobId"] == running["jobId"],
        "{status}"
    );
    let logs = logs(namespace).await?;
    ensure!(logs.contains("began 1 times"), "{logs}");
    let known = submissions(namespace).await?;
    ensure!(known == [status["jobId"].clone()], "{known:?} {status}");
    Ok(())
}

async fn a_job_is_tried_again_when_its_head_dies(scene: Scene) -> Result<()> {
    with_ray(&scene).await?;
    let namespace = &scene.namespace;
    // The attempt that runs first runs for ever.
    let script = r#"sh -c 'test -e /tmp/was-here || { touch /tmp/was-here; sleep 4242; }'"#;
    create(namespace, &rayjob(script, 1)).await?;
    let first = has(namespace, "/jobStatus", &json!("RUNNING")).await?;
    let (before, old) = eventually("Ray runs in head and worker", PATIENCE, async || {
        let pods = pods(namespace).await?;
        ensure!(pods.len() == 2, "{pods:?}");
        let processes = programs(&pods)?;
        Ok((pods, processes))
    })
    .await?;
    let head = before
        .iter()
        .position(|(name, ..)| is_head(name))
        .context("no head")?;
    old[head].signal(Signal::SIGKILL)?;
    let status = ended(namespace, "Complete").await?;
    ensure!(
        status["jobStatus"] == "SUCCEEDED"
            && retries(&status) > retries(&first)
            && status["failed"] == retries(&status),
        "{status}"
    );
    // Pods and containers are the same, and in all of them Ray is a new process.
    eventually("Ray has restarted everywhere", PATIENCE, async || {
        let after = pods(namespace).await?;
        ensure!(after == before, "{before:?} became {after:?}");
        let new = programs(&after)?;
        ensure!(
            new.iter().zip(&old).all(|(new, old)| new != old),
            "{old:?} became {new:?}"
        );
        Ok(())
    })
    .await
}
