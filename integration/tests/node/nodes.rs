//! A group whose workers are on three nodes.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use lockstep_integration::cluster::node_name;
use lockstep_integration::harness::group::RESTART;
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, Worker, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, Part, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_death_on_any_node_restarts_the_workers_of_all_in_place),
        case!(a_daemon_that_dies_in_the_middle_is_waited_for alone),
        case!(a_node_that_is_cut_off_is_waited_for alone),
    ]
}

/// Three on each node.
const WORKERS: u32 = 9;
const NODES: [u8; 3] = [1, 2, 3];

async fn spread(scene: &Scene, script: &str) -> Result<(Group, Vec<Worker>)> {
    let evenly = json!({
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"jobset.sigs.k8s.io/jobset-name": "group"}},
    });
    // Another case may have added a node.
    let ours = json!({"key": "kubernetes.io/hostname", "operator": "In", "values": NODES.map(node_name)});
    let required = json!({"nodeSelectorTerms": [{"matchExpressions": [ours]}]});
    let manifest = Manifest::new(WORKERS, script).pod(json!({
        "topologySpreadConstraints": [evenly],
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}},
    }));
    let group = scene.apply(&manifest).await?;
    let workers = group.running(WORKERS as usize).await?;
    for node in NODES {
        let there = on(node, &workers).count();
        ensure!(there == 3, "{there} workers are on node {node}: {workers:#?}");
    }
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    Ok((group, workers))
}

/// The workers on a node.
fn on(node: u8, workers: &[Worker]) -> impl Iterator<Item = &Worker> {
    let name = node_name(node);
    workers.iter().filter(move |worker| worker.place.node == name)
}

fn kill_one(node: u8, workers: &[Worker]) -> Result<()> {
    on(node, workers)
        .next()
        .context("no worker there")?
        .signal(Signal::SIGKILL)
}

/// Waits until all workers have restarted once, in place.
async fn restarts(group: &Group, before: &[Worker], generation: u64) -> Result<Vec<Worker>> {
    let after = group.restarted_in_place(before, generation).await?;
    group.status_has("/inPlaceRestart/restarts", generation).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    let now = group.running(before.len()).await?;
    ensure!(
        now == after,
        "restarted more than once: {after:#?} became {now:#?}"
    );
    Ok(after)
}

async fn a_death_on_any_node_restarts_the_workers_of_all_in_place(scene: Scene) -> Result<()> {
    let (group, mut workers) = spread(&scene, IDLE).await?;
    for (generation, node) in (1..).zip(NODES) {
        kill_one(node, &workers)?;
        workers = restarts(&group, &workers, generation).await?;
    }
    // Failures on all nodes at the same time are one failure.
    for node in NODES {
        // The restart may be faster and have stopped this worker already.
        let _ = kill_one(node, &workers);
    }
    workers = restarts(&group, &workers, 4).await?;
    for worker in &workers {
        let log = group.logged(&worker.place.pod, "attempt 4").await?;
        // The agent also logs if a worker has failed.
        let attempts: Vec<&str> = log.lines().filter(|line| line.starts_with("attempt")).collect();
        ensure!(
            attempts == ["attempt 0", "attempt 1", "attempt 2", "attempt 3", "attempt 4"],
            "{} logs {attempts:?}",
            worker.place.pod
        );
    }
    let nodes: BTreeSet<&str> = workers.iter().map(|worker| worker.place.node.as_str()).collect();
    ensure!(nodes.len() == NODES.len(), "{nodes:?}");
    group.status_has("/restarts", 0).await
}

async fn a_daemon_that_dies_in_the_middle_is_waited_for(scene: Scene) -> Result<()> {
    // The grace period keeps the restart in its middle until the daemon is dead.
    let script = r#"
        echo "attempt $LOCKSTEP_RESTART_ATTEMPT"
        trap 'echo stopping' TERM
        while :; do sleep 1000000 & wait $!; done"#;
    let (group, before) = spread(&scene, script).await?;
    kill_one(1, &before)?;
    let watched = on(3, &before).next().context("no worker there")?;
    group.logged(&watched.place.pod, "stopping").await?;
    scene.product.kill(Part::NodeDaemon(3)).await?;
    scene.product.ready().await?;
    let after = restarts(&group, &before, 1).await?;

    // A worker dies while its daemon is away.
    scene.product.kill(Part::NodeDaemon(2)).await?;
    kill_one(2, &after)?;
    scene.product.ready().await?;
    restarts(&group, &after, 2).await?;
    Ok(())
}

async fn a_node_that_is_cut_off_is_waited_for(scene: Scene) -> Result<()> {
    let (group, first) = spread(&scene, IDLE).await?;
    scene.product.cut_hub(Some(2)).await?;
    let now = group.running(first.len()).await?;
    ensure!(
        now == first,
        "healthy workers were touched: {first:#?} became {now:#?}"
    );
    kill_one(2, &first)?;
    let before = restarts(&group, &first, 1).await?;

    scene.product.part_hub(Some(3)).await?;
    kill_one(1, &before)?;
    eventually(
        "the workers on the other nodes are stopped",
        RESTART,
        async || {
            let runs = |worker: &&Worker| worker.agent.worker().is_some();
            let left = [1, 2]
                .into_iter()
                .flat_map(|node| on(node, &before))
                .filter(runs)
                .count();
            ensure!(left == 0, "{left} run");
            Ok(())
        },
    )
    .await?;
    ensure!(
        on(3, &before).all(|worker| worker.process.is_alive()),
        "workers that could not be reached died"
    );
    scene.product.join_hub().await?;
    restarts(&group, &before, 2).await?;
    Ok(())
}
