//! A hundred random gangs that compete for the same nodes.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::fixture::{Case, case};
use crate::in_order;
use crate::pool::{Pool, Set, part};
use crate::scene::{PATIENCE, Scene};
use crate::watcher::{Seen, Watcher};

pub(crate) const GANGS: usize = 100;
pub(crate) const NODES: usize = 200;
pub(crate) const CPUS: u32 = 2;
/// `scheduleTimeoutSeconds` of the gangs.
const TIMEOUT: u32 = 60;
/// How long after its time-out a gang may take to release its nodes.
const SLACK: Duration = Duration::from_secs(10);
/// These classes do not preempt: what has started goes on.
const CLASSES: [(&str, i32); 3] = [("crowd-low", -10), ("crowd-middle", 0), ("crowd-high", 10)];

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_hundred_gangs_behind_gates_start_whole_and_finish alone),
        case!(a_hundred_gangs_in_pod_groups_start_whole_and_finish alone),
    ]
}

async fn a_hundred_gangs_behind_gates_start_whole_and_finish(scene: Scene) -> Result<()> {
    compete(scene, "Gates", 0.5).await
}

async fn a_hundred_gangs_in_pod_groups_start_whole_and_finish(scene: Scene) -> Result<()> {
    // kube-scheduler spends most of a core on retries of gangs that have no room.
    compete(scene, "PodGroup", 0.6).await
}

/// Random gangs and their priorities. Only the names differ between calls: they begin with `name`.
pub(crate) fn gangs(name: &str, backend: &'static str) -> Vec<(Set, i32)> {
    let mut random = StdRng::seed_from_u64(7);
    (0..GANGS)
        .map(|number| {
            let half = NODES as u32 / 2;
            let (pods, cpus) = match random.random_range(0..100) {
                // More than half of all nodes.
                0..4 => (half + random.random_range(1..=4), CPUS),
                4..40 => (random.random_range(8..=20), random.random_range(1..=CPUS)),
                _ => (random.random_range(1..=6), random.random_range(1..=CPUS)),
            };
            let leaders = random.random_range(0..=1).min(pods - 1);
            let workers = part("w", pods - leaders, pods - leaders, cpus);
            let parts = match leaders {
                0 => vec![workers],
                _ => vec![part("m", leaders, leaders, cpus), workers],
            };
            let (class, priority) = CLASSES[random.random_range(0..CLASSES.len())];
            let runs = Duration::from_millis(random.random_range(3_000..=12_000));
            let set = Set::new(&format!("{name}-{number:03}"), backend, parts);
            (set.timeout(TIMEOUT).runs(runs).priority_class(class), priority)
        })
        .collect()
}

/// Compares the crowd with a queue in order of arrival. In that queue every gang takes as long to
/// start as a gang that has all nodes for itself, before the crowd or after it. `loss` is how much
/// less the crowd may use the nodes; most of that allows for a busy machine.
async fn compete(scene: Scene, backend: &'static str, loss: f64) -> Result<()> {
    let pool = pool(scene).await?;
    let alone_before = alone(&pool, backend, "alone-before").await?;
    let gangs = gangs("gang", backend);
    let sets: Vec<Set> = gangs.iter().map(|(set, _)| set.clone()).collect();
    let watcher = Watcher::start(pool.scene.api(), &sets);
    let start = Instant::now();
    for set in &sets {
        pool.create(set).await?;
    }
    until_all_finished(&pool).await?;
    let seen = until_seen(&watcher, &sets).await?;
    // The machine may have been less busy before the crowd than during it.
    let alone = alone_before.max(alone(&pool, backend, "alone-after").await?);
    none_was_partial(&seen)?;
    for (index, (high, priority)) in gangs.iter().enumerate() {
        for (low, lower) in &gangs[index + 1..] {
            let (high, low) = (&high.name, &low.name);
            let in_order = seen[high].started <= seen[low].started;
            ensure!(
                lower >= priority || in_order,
                "{low} of priority {lower} started before {high} of {priority}"
            );
        }
    }
    let queue = sets.iter().map(|set| as_seen(set, &seen[&set.name], start));
    let queue: Vec<in_order::Gang> = queue.collect::<Result<_>>()?;
    let ended = seen.values().filter_map(|seen| seen.ended).max();
    let took = ended.context("no gang has ended")?.duration_since(start);
    let in_order = in_order::makespan(&queue, NODES, CPUS, alone);
    let work: f64 = queue
        .iter()
        .map(|gang| f64::from(gang.pods * gang.cpus) * gang.runs.as_secs_f64())
        .sum();
    let capacity = NODES as f64 * f64::from(CPUS);
    let used = |time: Duration| work / capacity / time.as_secs_f64();
    println!(
        "     {backend}: {GANGS} gangs in {:.1} s, {:.0} % of the nodes used; started in order of arrival, each within {:.1} s: {:.1} s, {:.0} %",
        took.as_secs_f64(),
        100.0 * used(took),
        alone.as_secs_f64(),
        in_order.as_secs_f64(),
        100.0 * used(in_order)
    );
    ensure!(
        used(took) >= (1.0 - loss) * used(in_order),
        "{took:?}, in order of arrival {in_order:?}"
    );
    Ok(())
}

/// The nodes that the gangs compete for.
pub(crate) async fn pool(scene: Scene) -> Result<Pool> {
    let classes: Api<PriorityClass> = Api::all(scene.client());
    for (name, value) in CLASSES {
        let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"});
        // The other backend's case may have created it.
        let _ = classes
            .create(&PostParams::default(), &serde_json::from_value(class)?)
            .await;
    }
    Pool::new(scene, NODES, CPUS).await
}

/// No part of a gang stayed bound past its time-out.
pub(crate) fn none_was_partial(seen: &BTreeMap<String, Seen>) -> Result<()> {
    for (name, seen) in seen {
        let limit = Duration::from_secs(u64::from(TIMEOUT)) + SLACK;
        let partial = seen.longest_partial;
        ensure!(partial < limit, "{name} held nodes in part for {partial:?}");
    }
    Ok(())
}

/// How long a gang takes to be bound after its last pod is created, while nothing else runs.
async fn alone(pool: &Pool, backend: &'static str, name: &str) -> Result<Duration> {
    let set = Set::new(name, backend, [part("w", 16, 16, 1)]).runs(Duration::from_millis(100));
    let watcher = Watcher::start(pool.scene.api(), std::slice::from_ref(&set));
    pool.create(&set).await?;
    until_all_finished(pool).await?;
    let seen = until_seen(&watcher, std::slice::from_ref(&set)).await?;
    let times = seen[name].created.zip(seen[name].started);
    let (created, started) = times.context("it never ran")?;
    Ok(started.duration_since(created))
}

/// What the watcher has seen, once it has seen every set run and end: its watch may lag behind the
/// status of JobSets.
pub(crate) async fn until_seen(watcher: &Watcher, sets: &[Set]) -> Result<BTreeMap<String, Seen>> {
    eventually("every gang was seen to run", PATIENCE, async || {
        let seen = watcher.seen();
        for Set { name, .. } in sets {
            let ran = seen
                .get(name)
                .is_some_and(|seen| seen.started.is_some() && seen.ended.is_some());
            ensure!(ran, "{name} was not");
        }
        Ok(seen)
    })
    .await
}

pub(crate) async fn until_all_finished(pool: &Pool) -> Result<()> {
    eventually("all gangs have finished", Duration::from_secs(300), async || {
        let jobsets = pool.scene.api::<JobSet>().list(&ListParams::default()).await?;
        let open: Vec<String> = jobsets
            .into_iter()
            .filter(|jobset| {
                let status = jobset.status.as_ref();
                status.is_none_or(|status| status.condition("Completed").is_none())
            })
            .map(|jobset| jobset.name_any())
            .collect();
        ensure!(open.is_empty(), "{} have not: {open:?}", open.len());
        Ok(())
    })
    .await
}

/// The observed gang, for a queue that loses no time: it arrives with the last of its pods, and
/// holds its nodes for as long as it did.
fn as_seen(set: &Set, seen: &Seen, start: Instant) -> Result<in_order::Gang> {
    let came = seen.created.context("its pods never came")?;
    let (started, ended) = seen.started.zip(seen.ended).context("it never ran")?;
    Ok(in_order::Gang {
        arrives: came.duration_since(start),
        pods: set.parts.iter().map(|part| part.pods).sum(),
        cpus: set.parts[0].cpus,
        runs: ended.duration_since(started),
    })
}
