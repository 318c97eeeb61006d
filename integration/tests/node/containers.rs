//! Workers without an agent: their containers are all killed once, and the kubelet starts them
//! again.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::{RESTART, START, container_id, container_status};
use lockstep_integration::harness::manifest::{CONTAINER, IDLE};
use lockstep_integration::harness::{Group, Manifest, Process, eventually, process};
use nix::sys::signal::Signal;

use crate::support::{Case, Part, Paused, Scene, case};

/// The kubelet delays the second restart of a container by 10 s, and the machine may be slow.
const SECOND_RESTART: Duration = Duration::from_secs(120);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(one_death_restarts_all_containers_once),
        case!(a_node_daemon_that_dies_in_the_middle_stops_nothing_twice alone),
        case!(workers_whose_agent_is_missing_get_it_with_the_next_restart alone),
    ]
}

/// A worker without an agent: its container and the container's PID 1.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Worker {
    uid: String,
    container: String,
    restarts: i32,
    process: Process,
}

async fn workers(group: &Group) -> Result<Vec<Worker>> {
    let pods = group.pods().await?;
    let worker = |pod| {
        let status = container_status(pod, CONTAINER).context("no status")?;
        let running = status.state.as_ref().is_some_and(|state| state.running.is_some());
        ensure!(running, "a worker does not run: {:?}", status.state);
        let container = container_id(pod, CONTAINER)?;
        let process = process::init_of(&container).context("no PID 1 on this machine")?;
        ensure!(
            process.worker().is_none(),
            "it has an agent: {:?}",
            process.args()
        );
        Ok(Worker {
            uid: pod.metadata.uid.clone().unwrap_or_default(),
            container,
            restarts: status.restart_count,
            process,
        })
    };
    pods.iter().map(worker).collect()
}

/// Waits until three workers run whose containers have all restarted this often.
async fn restarted(group: &Group, restarts: i32, within: Duration) -> Result<Vec<Worker>> {
    eventually(
        &format!("3 workers run after {restarts} restarts"),
        within,
        async || {
            let workers = workers(group).await?;
            let counts: Vec<i32> = workers.iter().map(|worker| worker.restarts).collect();
            ensure!(counts == [restarts; 3], "restarts are {counts:?}");
            Ok(workers)
        },
    )
    .await
}

async fn started(scene: &Scene) -> Result<(Group, Vec<Worker>)> {
    let manifest = Manifest::new(3, IDLE).annotated("lockstep.dev/supervise", "none");
    let group = scene.apply(&manifest).await?;
    let workers = restarted(&group, 0, START).await?;
    group.status_has("/inPlaceRestart/kind", "Plain").await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    Ok((group, workers))
}

/// Checks that the pods are the same and the containers are others.
fn compare(before: &[Worker], after: &[Worker]) -> Result<()> {
    for (before, after) in before.iter().zip(after) {
        ensure!(before.uid == after.uid, "another pod: {before:?}, {after:?}");
        ensure!(
            before.container != after.container && !before.process.is_alive(),
            "the old container runs: {before:?}, {after:?}"
        );
    }
    Ok(())
}

/// Checks the status after this many restarts. None of them has recreated the Jobs.
async fn counted(group: &Group, restarts: i32) -> Result<()> {
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.status_has("/inPlaceRestart/generation", restarts).await?;
    group.status_has("/inPlaceRestart/restarts", restarts).await?;
    group.status_has("/inPlaceRestart/level", "Container").await?;
    group.status_has("/restarts", 0).await
}

async fn one_death_restarts_all_containers_once(scene: Scene) -> Result<()> {
    let (group, before) = started(&scene).await?;
    let why = group.event("RestartNotSupervised").await?;
    let why = why.message.unwrap_or_default();
    ensure!(why.contains("by container"), "{why}");

    before[1].process.signal(Signal::SIGKILL)?;
    let after = restarted(&group, 1, RESTART).await?;
    compare(&before, &after)?;
    counted(&group, 1).await?;
    let event = group.event("RestartedInPlace").await?.message.unwrap_or_default();
    ensure!(event.contains("by container"), "{event}");
    ensure!(workers(&group).await? == after, "restarted more than once");
    Ok(())
}

async fn a_node_daemon_that_dies_in_the_middle_stops_nothing_twice(scene: Scene) -> Result<()> {
    scene.product.renew(Part::NodeDaemon(1)).await?;
    let (group, first) = started(&scene).await?;
    first[0].process.signal(Signal::SIGKILL)?;
    scene.product.kill(Part::NodeDaemon(1)).await?;
    scene.product.ready().await?;
    let second = restarted(&group, 1, RESTART).await?;
    compare(&first, &second)?;
    counted(&group, 1).await?;

    // All have stopped, and the kubelet waits before it starts them again.
    second[1].process.signal(Signal::SIGKILL)?;
    eventually("all workers are stopped", RESTART, async || {
        let alive = second.iter().filter(|worker| worker.process.is_alive()).count();
        ensure!(alive == 0, "{alive} run");
        Ok(())
    })
    .await?;
    scene.product.kill(Part::NodeDaemon(1)).await?;
    let third = restarted(&group, 2, SECOND_RESTART).await?;
    scene.product.ready().await?;
    counted(&group, 2).await?;
    compare(&second, &third)?;
    ensure!(workers(&group).await? == third, "restarted more than once");

    // A daemon that comes back does not touch healthy workers.
    scene.product.kill(Part::NodeDaemon(1)).await?;
    scene.product.ready().await?;
    counted(&group, 2).await?;
    ensure!(workers(&group).await? == third, "healthy workers were touched");
    Ok(())
}

async fn workers_whose_agent_is_missing_get_it_with_the_next_restart(scene: Scene) -> Result<()> {
    let daemon = Paused::new(scene.product.process(Part::NodeDaemon(1)).await?)?;
    let group = scene.apply(&Manifest::new(3, IDLE)).await?;
    let before = restarted(&group, 0, START).await?;
    drop(daemon);
    scene.product.ready().await?;
    // The daemon now puts agents into new pods. It has seen the existing workers, and does not
    // touch them.
    let other = scene.apply(&Manifest::new(1, IDLE).named("later")).await?;
    other.running(1).await?;
    ensure!(workers(&group).await? == before, "healthy workers were touched");

    // One worker fails, and all get their agents with that restart.
    before[1].process.signal(Signal::SIGKILL)?;
    let after = eventually("all have an agent", RESTART, async || {
        let (workers, _) = group.workers().await?;
        let ran = workers.iter().all(|worker| worker.attempt == 1);
        ensure!(workers.len() == 3 && ran, "{workers:?}");
        Ok(workers)
    })
    .await?;
    for (before, after) in before.iter().zip(&after) {
        ensure!(
            before.uid == after.place.uid,
            "another pod: {before:?}, {after:?}"
        );
        ensure!(!before.process.is_alive(), "it lives: {before:?}");
        ensure!(
            after.place.restarts == 1,
            "its container has started again: {after:?}"
        );
    }
    group.status_has("/inPlaceRestart/kind", "Supervised").await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/restarts", 0).await?;

    // From now on the agents restart only processes.
    after[2].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&after, 2).await?;
    group.status_has("/inPlaceRestart/restarts", 2).await
}
