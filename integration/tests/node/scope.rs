//! One worker dies and restarts by itself; then one of another replicatedJob dies, and all restart.

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::{RESTART, Worker};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Case, Part, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(one_death_restarts_one_alone alone)]
}

async fn one_death_restarts_one_alone(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(4, IDLE)
        .restarting_worker_restarts()
        .with_head("head");
    let group = scene.apply(&manifest).await?;
    let before = group.running(5).await?;

    let victim = of(&before, "group-w-0-2")?;
    victim.signal(Signal::SIGKILL)?;
    let after = one_new(&group, &before, victim, 1).await?;
    for (pointer, value) in [("generation", 0), ("latest", 1), ("restarts", 1)] {
        group
            .status_has(&format!("/inPlaceRestart/{pointer}"), value)
            .await?;
    }
    group
        .status_has("/inPlaceRestart/workerRestarts", Value::Null)
        .await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    let event = group.event("RestartedInPlace").await?;
    let note = event.message.unwrap_or_default();
    ensure!(note.starts_with("Restarted one worker in place"), "{note}");

    // The same again with a leader that has seen none of it.
    let victim = of(&after, "group-w-0-3")?;
    scene.product.kill(Part::ControlPlane).await?;
    victim.signal(Signal::SIGKILL)?;
    scene.product.ready().await?;
    let after = one_new(&group, &after, victim, 2).await?;
    group.status_has("/inPlaceRestart/restarts", 2).await?;

    of(&after, "group-head-0-0")?.signal(Signal::SIGKILL)?;
    group.restarted_in_place(&after, 3).await?;
    group.status_has("/inPlaceRestart/generation", 3).await?;
    group.status_has("/inPlaceRestart/restarts", 3).await?;
    group.status_has("/restarts", 0).await
}

fn of<'w>(workers: &'w [Worker], pod: &str) -> Result<&'w Worker> {
    let mut found = workers.iter().filter(|worker| worker.place.pod.starts_with(pod));
    found.next().with_context(|| format!("no worker in {pod}"))
}

/// Waits until the victim runs again in its place at this generation, and checks that the others
/// are the same processes.
async fn one_new(group: &Group, before: &[Worker], victim: &Worker, attempt: u64) -> Result<Vec<Worker>> {
    let after = eventually("the worker runs again", RESTART, async || {
        let (workers, others) = group.workers().await?;
        ensure!(others.is_empty(), "{}", others.join("; "));
        let again = of(&workers, &victim.place.pod)?;
        ensure!(again.process != victim.process, "it is the old one");
        Ok(workers)
    })
    .await?;
    ensure!(after.len() == before.len(), "{after:#?}");
    for (old, new) in before.iter().zip(&after) {
        if old.place.pod == victim.place.pod {
            ensure!(new.place == old.place && new.attempt == attempt, "{new:#?}");
        } else {
            ensure!(new == old, "{old:#?} became {new:#?}");
        }
    }
    Ok(after)
}
