//! The crowd compared with a real queue: the same gangs on the same nodes with the same components,
//! first all at once, then one after another in order of arrival. That takes minutes: `make
//! soak-gang` sets LOCKSTEP_SOAK_GANG for it.
//!
//! The queue does only what it must do in turn. All JobSets and their Jobs exist, suspended, before
//! its clock starts. A gang is resumed as soon as the watcher sees the last pod of the previous
//! gang bound. The crowd's clock starts before its first JobSet is created.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::{DeleteParams, ListParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::crowd::{self, CPUS, GANGS, NODES};
use crate::fixture::{Case, case};
use crate::pool::{Pool, Set};
use crate::scene::Scene;
use crate::watcher::Watcher;

/// How much less than the queue the crowd may use the nodes, as the load of the machine varies.
const NOISE: f64 = 0.05;
/// How long a gang may wait for those before it, and how long ended gangs may take to disappear.
const LONG: Duration = Duration::from_secs(180);

pub(crate) fn cases() -> Vec<Case> {
    match std::env::var_os("LOCKSTEP_SOAK_GANG") {
        Some(_) => vec![
            case!(gates_use_the_nodes_no_less_than_a_queue alone),
            case!(pod_groups_use_the_nodes_no_less_than_a_queue alone),
        ],
        None => Vec::new(),
    }
}

async fn gates_use_the_nodes_no_less_than_a_queue(scene: Scene) -> Result<()> {
    compare(scene, "Gates").await
}

async fn pod_groups_use_the_nodes_no_less_than_a_queue(scene: Scene) -> Result<()> {
    compare(scene, "PodGroup").await
}

async fn compare(scene: Scene, backend: &'static str) -> Result<()> {
    let pool = crowd::pool(scene).await?;
    let crowd = run(&pool, "crowd", backend, all_at_once).await?;
    clear(&pool).await?;
    let queue = run(&pool, "queue", backend, one_after_another).await?;
    println!(
        "     {backend}: {GANGS} gangs, all at once: {crowd}; one after another: {queue}; {:.2} times as much",
        crowd.used() / queue.used(),
    );
    ensure!(
        crowd.used() >= (1.0 - NOISE) * queue.used(),
        "all at once: {crowd}; one after another: {queue}"
    );
    Ok(())
}

/// The result of running all gangs.
struct Outcome {
    /// The time until the last gang ended.
    took: Duration,
    /// The CPU-seconds that the gangs requested while they ran. What a gang holds before and after
    /// it runs does not count as use.
    work: f64,
    /// The average time from resume to bound, and the part of it before the pods were created.
    waited: Duration,
    unmade: Duration,
}

impl Outcome {
    /// Node-seconds used over node-seconds available.
    fn used(&self) -> f64 {
        self.work / (NODES as f64 * f64::from(CPUS)) / self.took.as_secs_f64()
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            out,
            "{:.1} s, {:.1} % of the nodes used (a gang waited {:.1} s on average, {:.1} s of that for its pods to be made)",
            self.took.as_secs_f64(),
            100.0 * self.used(),
            self.waited.as_secs_f64(),
            self.unmade.as_secs_f64(),
        )
    }
}

/// Runs all gangs, and checks that none held nodes in part for too long. `let_go` returns when each
/// was resumed.
async fn run(
    pool: &Pool,
    name: &str,
    backend: &'static str,
    let_go: impl AsyncFn(&Pool, &[Set], &Watcher) -> Result<Vec<Instant>>,
) -> Result<Outcome> {
    let gangs = crowd::gangs(name, backend).into_iter();
    let sets: Vec<Set> = gangs.map(|(set, _)| set).collect();
    let watcher = Watcher::start(pool.scene.api(), &sets);
    let times = let_go(pool, &sets, &watcher).await?;
    crowd::until_all_finished(pool).await?;
    let seen = crowd::until_seen(&watcher, &sets).await?;
    crowd::none_was_partial(&seen)?;
    let start = times.first().context("no gangs")?;
    let ended = seen.values().filter_map(|seen| seen.ended).max();
    let took = ended.context("no gang has ended")?.duration_since(*start);
    let (mut work, mut waited, mut unmade) = (0.0, Duration::ZERO, Duration::ZERO);
    for (set, let_go) in sets.iter().zip(times) {
        let seen = &seen[&set.name];
        let (created, started) = seen.created.zip(seen.started).context("it never ran")?;
        waited += started.duration_since(let_go);
        unmade += created.duration_since(let_go);
        let cpus: u32 = set.parts.iter().map(|part| part.pods * part.cpus).sum();
        work += f64::from(cpus) * set.runs.context("it runs for ever")?.as_secs_f64();
    }
    let count = u32::try_from(sets.len())?;
    Ok(Outcome {
        took,
        work,
        waited: waited / count,
        unmade: unmade / count,
    })
}

async fn all_at_once(pool: &Pool, sets: &[Set], _: &Watcher) -> Result<Vec<Instant>> {
    let mut times = Vec::new();
    for set in sets {
        times.push(Instant::now());
        pool.create(set).await?;
    }
    Ok(times)
}

async fn one_after_another(pool: &Pool, sets: &[Set], watcher: &Watcher) -> Result<Vec<Instant>> {
    for set in sets {
        pool.create(&set.clone().with(json!({"suspend": true}))).await?;
    }
    let jobs = sets.iter().map(|set| set.parts.len()).sum();
    until_count::<Job>(pool, "all Jobs are there", jobs).await?;
    let mut times = Vec::new();
    for set in sets {
        times.push(Instant::now());
        pool.patch(&set.name, json!({"spec": {"suspend": false}})).await?;
        watcher.until_started(&set.name, LONG).await?;
    }
    Ok(times)
}

/// Deletes all JobSets, and waits until nothing is left of them.
async fn clear(pool: &Pool) -> Result<()> {
    let jobsets = pool.scene.api::<JobSet>();
    jobsets
        .delete_collection(&DeleteParams::background(), &ListParams::default())
        .await?;
    until_count::<JobSet>(pool, "no JobSet is left", 0).await?;
    until_count::<Job>(pool, "no Job is left", 0).await?;
    until_count::<Pod>(pool, "no pod is left", 0).await
}

async fn until_count<K>(pool: &Pool, what: &str, count: usize) -> Result<()>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + DeserializeOwned
        + Clone
        + std::fmt::Debug,
{
    eventually(what, LONG, async || {
        let there = pool
            .scene
            .api::<K>()
            .list(&ListParams::default())
            .await?
            .items
            .len();
        ensure!(there == count, "there are {there}");
        Ok(())
    })
    .await
}
