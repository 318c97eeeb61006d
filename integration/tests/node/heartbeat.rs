//! Workers that hang: no process ends, but the worker makes no progress.

use anyhow::{Result, ensure};
use lockstep_integration::harness::Manifest;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, Scene, case};

/// A worker that gives a heartbeat ten times a second. The loop is the worker itself, so that a
/// signal stops it.
pub(crate) const BEATING: &str = r#"while :; do touch "$LOCKSTEP_HEARTBEAT" || exit 3; sleep 0.1; done"#;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_stopped_worker_restarts_its_group_in_place),
        case!(a_worker_that_does_not_come_up_restarts_its_group_until_no_restart_is_left),
    ]
}

async fn a_stopped_worker_restarts_its_group_in_place(scene: Scene) -> Result<()> {
    // The worker is not root, and its root file system is read-only.
    let hardened = json!({"securityContext": {
        "runAsUser": 4321,
        "runAsNonRoot": true,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
    }});
    let manifest = Manifest::new(2, BEATING)
        .container(hardened)
        .annotated("lockstep.dev/heartbeat-timeout", "10s");
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    before[1].signal(Signal::SIGSTOP)?;
    let after = group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group
        .status_has("/inPlaceRestart/cause/reason", "HeartbeatMissed")
        .await?;
    let event = group.event("RestartedInPlace").await?;
    let message = event.message.unwrap_or_default();
    ensure!(
        message.contains("heartbeat-timeout") && message.contains(&before[1].place.pod),
        "{message}"
    );
    group
        .logged(&before[1].place.pod, "no heartbeat for 10s (generation 0)")
        .await?;
    ensure!(after.iter().all(|worker| worker.process.is_alive()));
    Ok(())
}

async fn a_worker_that_does_not_come_up_restarts_its_group_until_no_restart_is_left(
    scene: Scene,
) -> Result<()> {
    // At its second attempt the worker never gives a heartbeat.
    let script = format!(r#"[ "$LOCKSTEP_RESTART_ATTEMPT" = 0 ] || exec sleep 1000000; {BEATING}"#);
    let manifest = Manifest::new(2, &script)
        .max_restarts(2)
        .annotated("lockstep.dev/heartbeat-timeout", "60s")
        .annotated("lockstep.dev/ready-timeout", "10s");
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    before[0].signal(Signal::SIGKILL)?;
    group.status_has("/inPlaceRestart/restarts", 2).await?;
    group
        .status_has("/inPlaceRestart/cause/reason", "ReadyTimeout")
        .await?;
    group.status_has("/terminalState", "Failed").await?;
    Ok(())
}
