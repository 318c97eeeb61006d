//! Workers that exceed their memory limit, and are killed by the kernel.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::{Place, START, Worker, container_status, places};
use lockstep_integration::harness::manifest::CONTAINER;
use lockstep_integration::harness::{Group, Manifest};
use serde_json::json;

use crate::support::{Case, Scene, case};

/// A script that becomes the memory eater as soon as there is a file `/tmp/eat`, once.
const EATER: &str = r#"
    echo "attempt $LOCKSTEP_RESTART_ATTEMPT"
    while [ ! -e /tmp/eat ]; do sleep 0.1; done
    rm /tmp/eat"#;
/// Uses 300 MB.
const ONE: &str = "exec dd if=/dev/zero of=/dev/null bs=300M count=1";
/// Each process uses 40 MB for ever. The worst OOM score adds less than the whole memory, which is
/// not enough against one process that has all of it.
const TWO: &str = "dd if=/dev/zero of=/dev/null bs=40M & exec dd if=/dev/zero of=/dev/null bs=40M";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(worker_out_of_memory_restarts_in_place),
        case!(container_out_of_memory_comes_back),
    ]
}

/// Requests equal limits, so that no process of the containers starts as a better victim than
/// another.
async fn eaters(scene: &Scene, eat: &str) -> Result<(Group, Vec<Worker>)> {
    let limits = json!({"cpu": "500m", "memory": "64Mi"});
    let manifest =
        Manifest::new(2, &format!("{EATER}\n{eat}")).container(json!({"resources": {"limits": limits}}));
    let group = scene.apply(&manifest).await?;
    let workers = group.running(2).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    Ok((group, workers))
}

fn eat(worker: &Worker) -> Result<()> {
    let path = format!("/proc/{}/root/tmp/eat", worker.agent.pid);
    fs::write(&path, "").with_context(|| path)
}

/// How many processes of the container the OOM killer has killed (cgroup v1).
fn killed(worker: &Worker) -> Result<u64> {
    let groups = fs::read_to_string(format!("/proc/{}/cgroup", worker.agent.pid))?;
    let group = groups.lines().find_map(|line| line.split_once(":memory:"));
    let (_, group) = group.with_context(|| format!("no memory cgroup in {groups}"))?;
    let control = fs::read_to_string(format!("/sys/fs/cgroup/memory{group}/memory.oom_control"))?;
    let count = control.lines().find_map(|line| line.strip_prefix("oom_kill "));
    Ok(count.context("no count")?.parse()?)
}

async fn worker_out_of_memory_restarts_in_place(scene: Scene) -> Result<()> {
    if Path::new("/sys/fs/cgroup/cgroup.controllers").exists() {
        println!("     left out: with cgroup v2 kubelet has the kernel kill the whole container");
        return Ok(());
    }
    let (group, before) = eaters(&scene, ONE).await?;
    eat(&before[1])?;
    let after = group.restarted_in_place(&before, 1).await?;
    ensure!(
        killed(&after[1])? == 1,
        "the kernel has not killed the worker for want of memory"
    );
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.status_has("/inPlaceRestart/cause/signal", 9).await?;
    let pod = before[1].place.pod.as_str();
    group.status_has("/inPlaceRestart/cause/pod", pod).await
}

/// Fails unless the kernel has ended the second worker's container for want of memory, and the
/// kubelet has started it again once.
pub(crate) async fn came_back(group: &Group, old: &Place, new: &Place) -> Result<()> {
    ensure!(
        old.uid == new.uid && old.container != new.container && new.restarts == 1,
        "{old:#?} became {new:#?}"
    );
    let pods = group.pods().await?;
    let status = container_status(&pods[1], CONTAINER).context("no status")?;
    let last = status
        .last_state
        .as_ref()
        .and_then(|last| last.terminated.as_ref());
    let last = last.context("the container has not ended")?;
    ensure!(
        last.exit_code == 137 && last.reason.as_deref() == Some("OOMKilled"),
        "it ended otherwise: {last:?}"
    );
    Ok(())
}

async fn container_out_of_memory_comes_back(scene: Scene) -> Result<()> {
    let (group, before) = eaters(&scene, TWO).await?;
    // The agent is PID 1: when it dies the container ends.
    fs::write(format!("/proc/{}/oom_score_adj", before[1].agent.pid), "1000")?;
    eat(&before[1])?;
    let after = group.at_generation(&before, 1, START).await?;
    let (old, new) = (&before[1].place, &after[1].place);
    came_back(&group, old, new).await?;
    ensure!(
        places(&before)[0] == places(&after)[0],
        "the other worker's place has changed"
    );
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/restarts", 0).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await
}
