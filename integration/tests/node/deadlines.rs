//! Restarts that must not go on: too many of them, or one that takes too long.

use anyhow::{Result, ensure};
use lockstep_integration::harness::Manifest;
use lockstep_integration::harness::group::START;
use lockstep_integration::harness::manifest::IDLE;
use nix::sys::signal::Signal;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(max_restarts_fail_the_jobset),
        case!(timed_out_restart_becomes_a_recreation),
    ]
}

async fn max_restarts_fail_the_jobset(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(2, IDLE).max_restarts(1)).await?;
    let before = group.running(2).await?;
    before[0].signal(Signal::SIGKILL)?;
    let after = group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    after[1].signal(Signal::SIGKILL)?;
    let (reason, message) = group.condition("Failed", START).await?;
    ensure!(reason == "ReachedMaxRestarts", "{reason}: {message}");
    group.status_has("/terminalState", "Failed").await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.event("ReachedMaxRestarts").await?;
    // The coordinator would have reported it before it wrote the condition.
    let told = group.events("ReachedMaxRestarts").await?;
    ensure!(told.len() == 1, "{told:?}");
    Ok(())
}

async fn timed_out_restart_becomes_a_recreation(scene: Scene) -> Result<()> {
    // The test waits for this once, and it is enough for the restart at the end.
    let manifest = Manifest::new(2, IDLE).annotated("alpha.jobset.sigs.k8s.io/inplace-timeout", "15s");
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;

    // The agent does not answer, so its worker never parks.
    before[0].agent.signal(Signal::SIGSTOP)?;
    before[1].signal(Signal::SIGKILL)?;
    let after = group.at_generation(&before, 2, START).await?;

    for (old, new) in before.iter().zip(&after) {
        ensure!(
            old.place.uid != new.place.uid,
            "the pod {} was not recreated",
            old.place.pod
        );
        ensure!(!old.agent.is_alive(), "the old pod {} still runs", old.place.pod);
    }
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/restarts", 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.event("RecreatingJobs").await?;
    group.event("Recreated").await?;

    after[1].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&after, 3).await?;
    Ok(())
}
