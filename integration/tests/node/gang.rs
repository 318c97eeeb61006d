//! Gangs whose workers run: a failure restarts them in place, and late workers join.

use anyhow::{Result, ensure};
use lockstep_integration::cluster::node_name;
use lockstep_integration::harness::group::START;
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, eventually};
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_gang_behind_gates_restarts_in_place),
        case!(a_gang_in_a_pod_group_restarts_in_place),
        case!(an_optional_worker_that_starts_late_joins_without_a_restart alone),
    ]
}

fn gang(workers: u32, minimum: u32, backend: &str) -> Manifest {
    let mut manifest = Manifest::new(workers, IDLE);
    manifest.0["spec"]["gang"] =
        json!({"backend": backend, "replicatedJobs": [{"name": "w", "minAvailable": minimum}]});
    manifest
}

/// Checks that the gang was bound once, runs, and released nothing.
async fn is_whole(group: &Group, backend: &str) -> Result<()> {
    group.status_has("/gangs/0/phase", "Scheduled").await?;
    let (reason, message) = group.condition("MinAvailable", START).await?;
    ensure!(reason == "Scheduled", "{reason}: {message}");
    let status = group.status().await?;
    let gang = &status["gangs"][0];
    let number = |key: &str| gang[key].as_i64().unwrap_or_default();
    // kube-scheduler binds a PodGroup at once: a leader that has not seen it partly bound counts no
    // attempt.
    let attempts = if backend == "PodGroup" { 0..=1 } else { 1..=1 };
    ensure!(
        attempts.contains(&number("attempt")) && number("restartAttempt") == 0,
        "{gang}"
    );
    for job in group.jobs().await? {
        let suspended = job.spec.as_ref().and_then(|spec| spec.suspend) == Some(true);
        ensure!(!suspended, "suspended: {:?}", job.metadata.name);
    }
    for reason in ["GangTimeout", "GangPodsUngrouped", "Suspended"] {
        let events = group.events(reason).await?;
        ensure!(events.is_empty(), "{events:?}");
    }
    Ok(())
}

async fn restarts_in_place(group: &Group, backend: &str) -> Result<()> {
    let mut workers = group.running(4).await?;
    is_whole(group, backend).await?;
    for generation in 1..=3 {
        workers[generation as usize].signal(Signal::SIGKILL)?;
        workers = group.restarted_in_place(&workers, generation).await?;
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
        is_whole(group, backend).await?;
    }
    group.status_has("/inPlaceRestart/restarts", 3).await?;
    group.status_has("/restarts", 0).await
}

async fn a_gang_behind_gates_restarts_in_place(scene: Scene) -> Result<()> {
    restarts_by(&scene, "Gates", false).await
}

async fn a_gang_in_a_pod_group_restarts_in_place(scene: Scene) -> Result<()> {
    restarts_by(&scene, "PodGroup", true).await
}

/// Checks that a gang of this backend restarts in place, and that its pods are in a group exactly
/// if `grouped`.
async fn restarts_by(scene: &Scene, backend: &str, grouped: bool) -> Result<()> {
    let group = scene.apply(&gang(4, 4, backend)).await?;
    restarts_in_place(&group, backend).await?;
    for pod in group.pods().await? {
        let scheduling_group = pod.spec.unwrap_or_default().scheduling_group;
        ensure!(
            scheduling_group.is_some() == grouped,
            "{:?} is in {scheduling_group:?}",
            pod.metadata.name
        );
    }
    Ok(())
}

/// An extended resource. The test sets how much of it the nodes have.
const SEATS: &str = "test.lockstep.dev/seats";

async fn seats(scene: &Scene, count: u32) -> Result<()> {
    let patch = json!({"status": {"capacity": {SEATS: count.to_string()}, "allocatable": {SEATS: count.to_string()}}});
    let node = node_name(1);
    let patch = patch.to_string();
    let args = [
        "patch",
        "node",
        &node,
        "--subresource=status",
        "--type=merge",
        "--patch",
        &patch,
    ];
    scene.namespace.kubectl(&args).await?;
    Ok(())
}

async fn an_optional_worker_that_starts_late_joins_without_a_restart(scene: Scene) -> Result<()> {
    for backend in ["Gates", "PodGroup"] {
        seats(&scene, 2).await?;
        let mut manifest = gang(3, 2, backend).named(&format!("g-{}", backend.to_lowercase()));
        let container = &mut manifest.0["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
            ["containers"][0];
        container["resources"] = json!({"limits": {SEATS: "1"}});
        let group = scene.apply(&manifest).await?;
        let before = eventually("the minimum runs", START, async || {
            let (workers, _) = group.workers().await?;
            ensure!(workers.len() == 2, "{workers:?}");
            Ok(workers)
        })
        .await?;
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
        is_whole(&group, backend).await?;
        seats(&scene, 3).await?;
        let after = group.running(3).await?;
        // Any two of them are the minimum: the Job controller decides which pods come first.
        let (kept, late): (Vec<_>, Vec<_>) = after.iter().partition(|worker| before.contains(worker));
        ensure!(kept.len() == 2, "{before:#?} became {after:#?}");
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
        is_whole(&group, backend).await?;
        let generation = group.status().await?["inPlaceRestart"]["generation"].clone();
        ensure!(
            [Value::Null, json!(0)].contains(&generation),
            "generation {generation}"
        );
        // From now on the late worker is one of them.
        late[0].signal(Signal::SIGKILL)?;
        group.restarted_in_place(&after, 1).await?;
        is_whole(&group, backend).await?;
        let jobset = format!("jobset/{}", group.name);
        scene.namespace.kubectl(&["delete", &jobset]).await?;
        eventually("its pods are gone", START, async || {
            ensure!(group.pods().await?.is_empty());
            Ok(())
        })
        .await?;
    }
    Ok(())
}
