//! One worker dies, and all restart in place.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::{RESTART, places};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Manifest, stopwatch};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(one_death_restarts_all_in_place),
        case!(simultaneous_deaths_are_one_restart),
        case!(twenty_in_a_row alone),
        case!(workers_that_wait_for_their_group_are_not_forgotten_with_the_annotation),
    ]
}

async fn one_death_restarts_all_in_place(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(4, IDLE)).await?;
    let before = group.running(4).await?;
    ensure!(before.iter().all(|worker| worker.attempt == 0), "{before:#?}");
    for worker in &before {
        group.logged(&worker.place.pod, "attempt 0").await?;
    }

    before[2].signal(Signal::SIGKILL)?;
    let after = group.restarted_in_place(&before, 1).await?;

    ensure!(
        after.iter().all(|worker| worker.place.restarts == 0),
        "{after:#?}"
    );
    group.status_has("/inPlaceRestart/generation", 1).await?;
    group.status_has("/inPlaceRestart/released", 1).await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.status_has("/inPlaceRestart/kind", "Supervised").await?;
    group.status_has("/restarts", 0).await?;
    for worker in &after {
        let log = group.logged(&worker.place.pod, "attempt 1").await?;
        let first = log.find("attempt 0").context("the log has lost its beginning")?;
        ensure!(log.find("attempt 1") > Some(first), "{log}");
    }

    let event = group.event("RestartedInPlace").await?;
    let timeline = event
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get("lockstep.dev/timeline"));
    let timeline: Value = serde_json::from_str(timeline.context("the event has no timeline")?)?;
    let victim = &before[2].place.pod;
    ensure!(
        timeline["causePod"] == victim.as_str(),
        "the cause is {timeline}, not {victim}"
    );
    ensure!(timeline["workers"] == 4, "{timeline}");
    let at = |key: &str| timeline[key].as_i64().unwrap_or_default();
    for (earlier, later) in [
        ("failedAt", "detectedAt"),
        ("detectedAt", "stoppedAt"),
        ("parkedAt", "releasedAt"),
        ("writtenAt", "releasedAt"),
        ("releasedAt", "runningAt"),
    ] {
        ensure!(
            0 < at(earlier) && at(earlier) <= at(later),
            "{earlier} is after {later} in {timeline}"
        );
    }
    Ok(())
}

async fn simultaneous_deaths_are_one_restart(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(4, IDLE)).await?;
    let before = group.running(4).await?;
    for worker in &before {
        // The restart may be faster and have stopped this worker already.
        let _ = worker.signal(Signal::SIGKILL);
    }
    group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await
}

/// How much slower the last restarts may be than the first ones. The benchmark, which has the
/// machine for itself, measures how long a restart takes.
const SLOWDOWN: u32 = 2;
/// Times below this are not compared, as other load of the machine may take as long. Any wait of
/// the workers takes longer.
const NOISE: Duration = Duration::from_secs(1);

async fn twenty_in_a_row(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(4, IDLE)).await?;
    let first = group.running(4).await?;
    let mut workers = first.clone();
    let mut times = Vec::new();
    for generation in 1..=20 {
        let victim = workers[generation as usize % workers.len()].process;
        times.push(stopwatch::kill_in_place(workers.clone(), victim, RESTART).await?);
        workers = group.restarted_in_place(&workers, generation).await?;
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
    }
    ensure!(
        places(&first) == places(&workers),
        "pods or containers have changed"
    );
    group.status_has("/inPlaceRestart/generation", 20).await?;
    group.status_has("/inPlaceRestart/restarts", 20).await?;
    group.status_has("/restarts", 0).await?;

    let (head, tail) = (stopwatch::median(&times[..5]), stopwatch::median(&times[15..]));
    let median = stopwatch::median(&times);
    println!(
        "     20 restarts: median {median:.1?}, first five {head:.1?}, last five {tail:.1?}; all: {times:.1?}"
    );
    ensure!(
        tail <= head.max(NOISE) * SLOWDOWN,
        "restarts become slower: {head:?}, then {tail:?}"
    );
    Ok(())
}

async fn workers_that_wait_for_their_group_are_not_forgotten_with_the_annotation(scene: Scene) -> Result<()> {
    const TIMEOUT: &str = "alpha.jobset.sigs.k8s.io/inplace-timeout";
    let manifest = Manifest::new(2, IDLE)
        .strategy("Recreate")
        .annotated(TIMEOUT, "30s");
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group
        .patch(json!({"metadata": {"annotations": {TIMEOUT: null}}}))
        .await?;
    before[0].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/restarts", 1).await
}
