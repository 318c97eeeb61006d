//! None of a worker's processes outlives a restart, whatever tree they form, and the restart
//! succeeds.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::RESTART;
use lockstep_integration::harness::{Group, Manifest, Process, Worker, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(ignoring_sigterm_costs_the_grace_only),
        case!(daemons_die_with_their_worker),
        case!(closed_standard_streams),
        case!(exit_0_upon_the_stop_is_not_done),
        case!(a_failed_worker_leaves_no_children_behind),
        case!(what_the_agent_may_not_kill_dies_by_the_daemon),
    ]
}

/// Kills the first worker of two, and returns the workers before and after.
async fn restart_two(
    scene: &Scene,
    manifest: &Manifest,
    processes: usize,
) -> Result<(Group, Vec<Worker>, Vec<Worker>)> {
    let group = scene.apply(manifest).await?;
    let before = group.running(2).await?;
    let trees = trees(&before, processes).await?;
    before[0].signal(Signal::SIGKILL)?;
    let after = group.restarted_in_place(&before, 1).await?;
    let left: Vec<_> = trees.into_iter().filter(|process| process.is_alive()).collect();
    ensure!(
        left.is_empty(),
        "these outlived the restart: {:?}",
        left.iter().map(|left| left.args()).collect::<Vec<_>>()
    );
    Ok((group, before, after))
}

/// All processes of these workers, once each has this many.
async fn trees(workers: &[Worker], processes: usize) -> Result<Vec<Process>> {
    eventually("all processes of the workers run", RESTART, async || {
        let mut all = Vec::new();
        for worker in workers {
            let tree = worker.tree();
            ensure!(tree.len() == processes, "{} has {}", worker.place.pod, tree.len());
            all.extend(tree);
        }
        Ok(all)
    })
    .await
}

async fn ignoring_sigterm_costs_the_grace_only(scene: Scene) -> Result<()> {
    let script = r#"trap 'echo not now' TERM; while :; do sleep 1000000 & wait $!; done"#;
    for policy in ["OnFailure", "Never"] {
        let manifest = Manifest::new(2, script)
            .named(&policy.to_lowercase())
            .restart_policy(policy)
            .pod(json!({"terminationGracePeriodSeconds": 60}))
            .annotated("lockstep.dev/restart-grace", "300ms");
        let (group, before, _) = restart_two(&scene, &manifest, 2).await?;
        group.logged(&before[1].place.pod, "not now").await?;
        let killed = "worker still running 300 ms after SIGTERM: sending SIGKILL";
        group.logged(&before[1].place.pod, killed).await?;
        let timeline = group
            .event("RestartedInPlace")
            .await?
            .metadata
            .annotations
            .unwrap_or_default();
        let timeline: serde_json::Value = serde_json::from_str(&timeline["lockstep.dev/timeline"])?;
        let at = |key: &str| timeline[key].as_u64().unwrap_or_default();
        let took = Duration::from_nanos(at("runningAt") - at("failedAt"));
        // Far less than the pod's own grace period, and more than a busy machine takes.
        let (least, most) = (Duration::from_millis(300), Duration::from_secs(30));
        ensure!(
            (least..most).contains(&took),
            "with a grace of 300 ms the restart took {took:?}"
        );
    }
    Ok(())
}

async fn daemons_die_with_their_worker(scene: Scene) -> Result<()> {
    // A child, one that ignores SIGTERM, one in a session of its own, and one whose parent has also
    // exited.
    let script = r#"
        sleep 1000001 &
        (trap '' TERM; exec sleep 1000002) &
        setsid sleep 1000003 &
        (setsid sh -c 'trap "" TERM HUP; sleep 1000004 & exec sleep 1000005' &) &
        exec sleep 1000000"#;
    for policy in ["OnFailure", "Never"] {
        let manifest = Manifest::new(2, script)
            .named(&policy.to_lowercase())
            .restart_policy(policy)
            .annotated("lockstep.dev/restart-grace", "300ms");
        let (_, _, after) = restart_two(&scene, &manifest, 6).await?;
        trees(&after, 6).await?;
    }
    Ok(())
}

async fn closed_standard_streams(scene: Scene) -> Result<()> {
    let script = r#"echo "attempt $LOCKSTEP_RESTART_ATTEMPT"; exec sleep 1000000 <&- >&- 2>&-"#;
    let (group, before, _) = restart_two(&scene, &Manifest::new(2, script), 1).await?;
    for worker in &before {
        group.logged(&worker.place.pod, "attempt 1").await?;
    }
    Ok(())
}

async fn exit_0_upon_the_stop_is_not_done(scene: Scene) -> Result<()> {
    let script = r#"trap 'echo obeying; exit 0' TERM; while :; do sleep 1000000 & wait $!; done"#;
    let (group, before, _) = restart_two(&scene, &Manifest::new(2, script), 2).await?;
    group.logged(&before[1].place.pod, "obeying").await?;
    for job in group.jobs().await? {
        let done = job.status.and_then(|status| status.succeeded).unwrap_or_default();
        ensure!(done == 0, "{done} workers count as done");
    }
    Ok(())
}

async fn a_failed_worker_leaves_no_children_behind(scene: Scene) -> Result<()> {
    let script = r#"
        setsid sleep 1000001 &
        trap 'exit 7' USR1
        while :; do sleep 1000000 & wait $!; done"#;
    let group = scene.apply(&Manifest::new(2, script)).await?;
    let before = group.running(2).await?;
    let old = trees(&before, 3).await?;
    before[0].signal(Signal::SIGUSR1)?;
    group.restarted_in_place(&before, 1).await?;
    ensure!(
        old.iter().all(|process| !process.is_alive()),
        "old processes are alive"
    );
    group.status_has("/inPlaceRestart/cause/exitCode", 7).await
}

/// Root without CAP_KILL may not signal the processes of another user, even as their parent.
async fn what_the_agent_may_not_kill_dies_by_the_daemon(scene: Scene) -> Result<()> {
    let script = "su nobody -s /bin/sh -c 'sleep 1000000'";
    let manifest =
        Manifest::new(2, script).container(json!({"securityContext": {"capabilities": {"drop": ["KILL"]}}}));
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    let nobodys = eventually("the other worker is another user's", RESTART, async || {
        let of_nobody = |process: &Process| process.status("Uid").first().is_some_and(|uid| uid == "65534");
        let tree = before[0].tree();
        tree.into_iter().find(of_nobody).context("none of them is")
    })
    .await?;
    before[1].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    ensure!(!nobodys.is_alive(), "{nobodys:?} lives");
    group.status_has("/inPlaceRestart/level", "Process").await?;
    group.status_has("/inPlaceRestart/restarts", 1).await
}
