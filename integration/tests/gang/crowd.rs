//! A hundred random gangs that compete for the same nodes.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use k8s_openapi::api::scheduling::v1::PriorityClass;
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;

use crate::fixture::{Case, case};
use crate::pool::{Pool, Set, part};
use crate::scene::Scene;
use crate::watcher::Watcher;

const GANGS: usize = 100;
const NODES: usize = 20;
const CPUS: u32 = 8;
/// `scheduleTimeoutSeconds` of the gangs.
const TIMEOUT: u32 = 10;
/// How long after its time-out a gang may take to give back what it holds.
const SLACK: Duration = Duration::from_secs(10);
/// Classes that do not preempt: what has started goes on.
const CLASSES: [(&str, i32); 3] = [("crowd-low", -10), ("crowd-middle", 0), ("crowd-high", 10)];

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_hundred_gangs_behind_gates_start_whole_and_finish alone),
        case!(a_hundred_gangs_in_pod_groups_start_whole_and_finish alone),
    ]
}

async fn a_hundred_gangs_behind_gates_start_whole_and_finish(scene: Scene) -> Result<()> {
    compete(scene, "Gates").await
}

async fn a_hundred_gangs_in_pod_groups_start_whole_and_finish(scene: Scene) -> Result<()> {
    compete(scene, "PodGroup").await
}

/// Random gangs, the same each time.
fn gangs(backend: &'static str) -> Vec<(Set, i32)> {
    let mut random = StdRng::seed_from_u64(7);
    (0..GANGS)
        .map(|number| {
            let half = NODES as u32 * CPUS / 2;
            let (pods, cpus) = match random.random_range(0..10) {
                // More than half of all nodes.
                0 => (half / 4 + random.random_range(1..=4), 4),
                1..=3 => (random.random_range(8..=16), random.random_range(1..=4)),
                _ => (random.random_range(1..=6), random.random_range(1..=8)),
            };
            let leaders = random.random_range(0..=1).min(pods - 1);
            let workers = part("w", pods - leaders, pods - leaders, cpus);
            let parts = match leaders {
                0 => vec![workers],
                _ => vec![part("m", leaders, leaders, cpus), workers],
            };
            let (class, priority) = CLASSES[random.random_range(0..CLASSES.len())];
            let runs = Duration::from_millis(random.random_range(500..=3000));
            let set = Set::new(&format!("gang-{number:03}"), backend, parts);
            (set.timeout(TIMEOUT).runs(runs).priority_class(class), priority)
        })
        .collect()
}

async fn compete(scene: Scene, backend: &'static str) -> Result<()> {
    let classes: Api<PriorityClass> = Api::all(scene.client());
    for (name, value) in CLASSES {
        let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"});
        // The other backend's case may have made it.
        let _ = classes
            .create(&PostParams::default(), &serde_json::from_value(class)?)
            .await;
    }
    let pool = Pool::new(scene, NODES, CPUS).await?;
    let gangs = gangs(backend);
    let sets: Vec<Set> = gangs.iter().map(|(set, _)| set.clone()).collect();
    let watcher = Watcher::start(pool.scene.api(), &sets);
    let start = Instant::now();
    for set in &sets {
        pool.create(set).await?;
    }
    eventually("all gangs have finished", Duration::from_secs(200), async || {
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
    .await?;
    let took = start.elapsed();

    let seen = watcher.seen();
    for (name, seen) in &seen {
        let limit = Duration::from_secs(u64::from(TIMEOUT)) + SLACK;
        let partial = seen.longest_partial;
        ensure!(partial < limit, "{name} held nodes in part for {partial:?}");
    }
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
    let one_by_one: Duration = sets.iter().filter_map(|set| set.runs).sum();
    let work: f64 = sets
        .iter()
        .flat_map(|set| set.parts.iter().map(move |part| (set, part)))
        .map(|(set, part)| f64::from(part.pods * part.cpus) * set.runs.unwrap_or_default().as_secs_f64())
        .sum();
    let capacity = NODES as f64 * f64::from(CPUS);
    println!(
        "     {backend}: {GANGS} gangs in {:.1} s, one by one {:.1} s; {:.0} % of the nodes used",
        took.as_secs_f64(),
        one_by_one.as_secs_f64(),
        100.0 * work / capacity / took.as_secs_f64()
    );
    ensure!(took <= one_by_one, "{took:?}, one by one {one_by_one:?}");
    Ok(())
}
