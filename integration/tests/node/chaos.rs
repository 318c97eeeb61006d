//! Workers die again and again while everything around them fails: each time they restart in place,
//! and nothing else happens.
//!
//! `make soak-node` does that for 200 rounds, and for 1,000 restarts with rollouts between them
//! ([`soak`]). LOCKSTEP_CHAOS_ROUNDS sets the number of rounds, and LOCKSTEP_CHAOS_SEED replays the
//! choice of workers, faults and times, but not the response of the programs.

mod authority;
mod fault;
mod plan;
mod soak;
mod state;
pub(crate) mod storm;
mod watch;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use lockstep_integration::harness::group::START;
use lockstep_integration::harness::{Group, Manifest, Worker, stopwatch};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, LIMIT, Part, Scene, case};
use fault::{Fault, Move};
use plan::Round;
use state::{Logs, Rest, SCRIPT};
use storm::{
    both_parts_are_rolled_out_in_a_storm_of_restarts, the_authority_is_replaced_in_a_storm_of_restarts,
};
use watch::Watch;

/// Every fault once.
const ROUNDS: usize = Fault::ALL.len();
/// Workers of each group.
const WORKERS: usize = 4;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![
        of_many_rounds(case!(restarts_amid_faults alone)),
        case!(no_crash_stretches_max_restarts alone),
        case!(both_parts_are_rolled_out_in_a_storm_of_restarts alone),
        case!(the_authority_is_replaced_in_a_storm_of_restarts alone),
    ];
    cases.extend(soak::cases());
    cases
}

/// The same with the workers spread over three nodes.
pub(crate) fn cases_of_three_nodes() -> Vec<Case> {
    vec![of_many_rounds(case!(restarts_amid_faults_of_three_nodes alone))]
}

fn of_many_rounds(case: Case) -> Case {
    let rounds = u32::try_from(count()).expect("too many");
    Case {
        limit: LIMIT + Duration::from_secs(20) * rounds,
        ..case
    }
}

/// The number in an environment variable.
pub(crate) fn setting(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is {text:?}")))
}

fn count() -> usize {
    setting("LOCKSTEP_CHAOS_ROUNDS").map_or(ROUNDS, |rounds| usize::try_from(rounds).expect("too many"))
}

/// A group under test.
struct Subject {
    group: Group,
    rest: Rest,
    logs: Logs,
    max_restarts: u64,
}

async fn restarts_amid_faults(scene: Scene) -> Result<()> {
    restarts_of(&scene, Manifest::new(4, SCRIPT)).await
}

async fn restarts_amid_faults_of_three_nodes(scene: Scene) -> Result<()> {
    restarts_of(&scene, spread(Manifest::new(4, SCRIPT))).await
}

async fn restarts_of(scene: &Scene, manifest: Manifest) -> Result<()> {
    let seed = setting("LOCKSTEP_CHAOS_SEED").unwrap_or_else(|| rand::random::<u32>().into());
    println!("     {} rounds with LOCKSTEP_CHAOS_SEED={seed}", count());
    // A round has three failures at most.
    let max_restarts = 3 * u32::try_from(count())?;
    let one = long_suffering(manifest, max_restarts);
    let mut subjects = Vec::new();
    for manifest in [one.clone(), in_two_stages(one)] {
        let group = scene.apply(&manifest).await?;
        let max_restarts = max_restarts.into();
        let rest = Rest::wait(&group, WORKERS, 0..=0, max_restarts).await?;
        subjects.push(Subject {
            group,
            rest,
            logs: Logs::default(),
            max_restarts,
        });
    }

    let mut times: BTreeMap<String, Vec<Duration>> = BTreeMap::new();
    for round in plan::rounds(seed, count(), subjects.len(), WORKERS) {
        let took = act(scene, &mut subjects, &round)
            .await
            .with_context(|| format!("LOCKSTEP_CHAOS_SEED={seed}, {round}"))?;
        println!("     {round}: at rest after {:.1} s", took.as_secs_f64());
        for blow in &round.blows {
            times.entry(format!("{:?}", blow.fault)).or_default().push(took);
        }
    }
    for (fault, times) in &times {
        let longest = times.iter().max().copied().unwrap_or_default();
        println!(
            "     {fault} {} times: at rest after {:.1?} in the median, {longest:.1?} at most",
            times.len(),
            stopwatch::median(times)
        );
    }
    Ok(())
}

/// The JobSet has time and restarts enough for all rounds.
pub(crate) fn long_suffering(manifest: Manifest, max_restarts: u32) -> Manifest {
    manifest
        .max_restarts(max_restarts)
        .annotated("alpha.jobset.sigs.k8s.io/inplace-timeout", "10m")
        .annotated("lockstep.dev/max-backoff", "1s")
}

/// Spreads the workers evenly over the nodes.
pub(crate) fn spread(manifest: Manifest) -> Manifest {
    manifest.pod(json!({"topologySpreadConstraints": [{
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchExpressions": [{"key": "jobset.sigs.k8s.io/jobset-name", "operator": "Exists"}]},
    }]}))
}

/// A group of as many workers, half of them in a second replicatedJob that starts when the first is
/// ready.
fn in_two_stages(manifest: Manifest) -> Manifest {
    let half = WORKERS / 2;
    let mut manifest = manifest
        .named("stages")
        .job(json!({"parallelism": half, "completions": half}));
    let jobs = &mut manifest.0["spec"]["replicatedJobs"];
    let (first, mut second) = (jobs[0].clone(), jobs[0].clone());
    second["name"] = json!("x");
    second["dependsOn"] = json!([{"name": "w", "status": "Ready"}]);
    *jobs = json!([first, second]);
    manifest
}

/// Kills a worker and injects the faults; the group must be at rest afterwards. Returns how long
/// that took from the first event.
async fn act(scene: &Scene, subjects: &mut [Subject], round: &Round) -> Result<Duration> {
    let before = subjects[round.group].rest.clone();
    let mut loaded = Vec::new();
    for blow in &round.blows {
        loaded.push((blow.at, fault::load(scene, blow, &before.workers).await?));
    }
    // The preparation of faults may have replaced pods of the product.
    for subject in &mut *subjects {
        subject.rest.ensure_unchanged(&subject.group).await?;
    }

    let moves: Vec<Move> = loaded.iter().filter_map(|(_, fault)| fault.moves).collect();
    let failures = 1 + moves.len() as u64;
    let group = &subjects[round.group].group;
    let watch = Watch::over(&before.workers);
    let start = Instant::now();
    // The first thing of the round happens now.
    let lead = round.blows.iter().map(|blow| blow.at).min().unwrap_or(0).min(0);
    let after = |at: i64| Duration::from_millis((at - lead).unsigned_abs());
    let victim = async {
        tokio::time::sleep(after(0)).await;
        let killed = before.workers[round.victim].signal(Signal::SIGKILL);
        // If another fault was a failure, the worker may have been stopped for that.
        if moves.is_empty() { killed } else { Ok(()) }
    };
    let faults = loaded.into_iter().map(|(at, fault)| async move {
        tokio::time::sleep(after(at)).await;
        fault.armed.strike(&scene.product, group).await
    });
    tokio::try_join!(victim, try_join_all(faults))?;
    scene.product.ready().await?;

    let generations = before.generation + 1..=before.generation + failures;
    let subject = &mut subjects[round.group];
    subject.rest = Rest::wait(&subject.group, WORKERS, generations, subject.max_restarts).await?;
    let took = start.elapsed();
    watch.end().await?;
    subject.rest.ensure_places(&before, &moves)?;
    for subject in subjects {
        subject.rest.ensure_quiet(&subject.group).await?;
        subject.logs.check(&subject.group, &subject.rest).await?;
    }
    Ok(took)
}

/// The first worker dies together with the control plane, which uses up the only restart. The
/// second dies together with the daemon, which fails the JobSet.
async fn no_crash_stretches_max_restarts(scene: Scene) -> Result<()> {
    let group = scene.apply(&long_suffering(Manifest::new(2, SCRIPT), 1)).await?;
    let rest = Rest::wait(&group, 2, 0..=0, 1).await?;
    die_with(&scene, Part::ControlPlane, &rest.workers[0]).await?;
    let rest = Rest::wait(&group, 2, 1..=1, 1).await?;

    die_with(&scene, Part::NodeDaemon(1), &rest.workers[1]).await?;
    let (reason, message) = group.condition("Failed", START).await?;
    ensure!(reason == "ReachedMaxRestarts", "{reason}: {message}");
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/restarts", 0).await
}

async fn die_with(scene: &Scene, part: Part, worker: &Worker) -> Result<()> {
    scene.product.fresh(part).await?;
    let process = scene.product.process(part).await?;
    worker.signal(Signal::SIGKILL)?;
    process.signal(Signal::SIGKILL)?;
    scene.product.ready().await
}
