//! Pods that are deleted or evicted, containers that the kubelet kills, and JobSets that are
//! suspended.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use futures::{AsyncBufReadExt, TryStreamExt};
use k8s_openapi::api::core::v1::{Event, Pod};
use kube::api::{Api, EvictParams, LogParams, WatchEvent, WatchParams};
use lockstep_api::naming;
use lockstep_integration::harness::group::{Place, START, Worker, container_status, places};
use lockstep_integration::harness::manifest::{CONTAINER, IDLE};
use lockstep_integration::harness::{Group, Manifest, eventually};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(deleted_pod_is_replaced_at_the_next_generation),
        case!(evicted_pod_is_replaced_and_nobody_else_moves),
        case!(a_container_that_fails_its_liveness_probe_restarts_the_group_once),
        case!(pods_deleted_one_after_another_are_each_replaced_by_the_control_plane),
        case!(a_worker_that_keeps_failing_loses_its_pod),
        case!(agent_told_to_go_without_worker_exits_143),
        case!(suspend_and_resume),
    ]
}

async fn deleted_pod_is_replaced_at_the_next_generation(scene: Scene) -> Result<()> {
    // After exit 0 the Job would count the index as done.
    let script = r#"
        echo "attempt $LOCKSTEP_RESTART_ATTEMPT"
        trap 'echo saving; sleep 1; echo saved; exit 143' TERM
        while :; do sleep 1000000 & wait $!; done"#;
    let manifest = Manifest::new(3, script).pod(json!({"terminationGracePeriodSeconds": 20}));
    let group = scene.apply(&manifest).await?;
    let before = group.running(3).await?;
    let victim = before[1].place.pod.clone();
    let pods: Api<Pod> = Api::namespaced(scene.access().client.clone(), &scene.namespace.name);
    let follow = LogParams {
        follow: true,
        container: Some(CONTAINER.to_owned()),
        ..LogParams::default()
    };
    let log = pods.log_stream(&victim, &follow).await?;
    let log = tokio::spawn(log.lines().try_collect::<Vec<_>>());

    scene
        .namespace
        .kubectl(&["delete", "pod", &victim, "--wait=false"])
        .await?;
    let log = log.await??;
    ensure!(
        log.iter().any(|line| line == "saving"),
        "no SIGTERM reached the worker: {log:?}"
    );
    ensure!(
        log.iter().any(|line| line == "saved"),
        "the worker did not get its grace period: {log:?}"
    );

    let after = group.at_generation(&before, 1, START).await?;
    ensure!(
        after[1].place.pod == next_name(&group, &before[1].place),
        "{:?} was replaced by {:?}",
        before[1].place,
        after[1].place
    );
    for index in [0, 2] {
        ensure!(
            after[index].place == before[index].place,
            "a pod that was not deleted has changed"
        );
    }
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await
}

/// Checks that the group has restarted in place exactly once, and was not recreated.
async fn restarted_once(group: &Group) -> Result<()> {
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/generation", 1).await?;
    group.status_has("/restarts", 0).await
}

async fn evicted_pod_is_replaced_and_nobody_else_moves(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(3, IDLE).pod(json!({"terminationGracePeriodSeconds": 1}));
    let group = scene.apply(&manifest).await?;
    let before = group.running(3).await?;
    let victim = before[1].place.clone();
    let pods: Api<Pod> = Api::namespaced(scene.access().client.clone(), &scene.namespace.name);
    pods.evict(&victim.pod, &EvictParams::default()).await?;

    let after = group.at_generation(&before, 1, START).await?;
    ensure!(
        after[1].place.pod == next_name(&group, &victim),
        "{victim:?} was replaced by {:?}",
        after[1].place
    );
    ensure_others_unchanged(&before, &after, 1)?;
    restarted_once(&group).await
}

/// The probe looks for a file in the container's own layer: the next container does not have it.
async fn a_container_that_fails_its_liveness_probe_restarts_the_group_once(scene: Scene) -> Result<()> {
    // A slow machine must not be the failure that ends the container.
    let probe = json!({
        "exec": {"command": ["test", "!", "-e", "/sick"]},
        "periodSeconds": 1,
        "timeoutSeconds": 30,
        "failureThreshold": 1,
    });
    let manifest = Manifest::new(3, IDLE)
        .annotated("lockstep.dev/supervise", CONTAINER)
        .pod(json!({"terminationGracePeriodSeconds": 1}))
        .container(json!({"livenessProbe": probe}));
    let group = scene.apply(&manifest).await?;
    let before = group.running(3).await?;
    group.status_has("/inPlaceRestart/kind", "Supervised").await?;
    let victim = &before[1];
    std::fs::write(format!("/proc/{}/root/sick", victim.process.pid), "")?;

    let after = group.at_generation(&before, 1, START).await?;
    ensure!(
        after[1].place.uid == victim.place.uid && after[1].place.restarts == 1,
        "{:?} became {:?}",
        victim.place,
        after[1].place
    );
    ensure_others_unchanged(&before, &after, 1)?;
    restarted_once(&group).await
}

/// The name of the control plane's replacement for this pod. The Job controller, which replaces
/// pods after 10 s and ever longer, uses other names.
fn next_name(group: &Group, place: &Place) -> String {
    naming::replacement_pod_name(&format!("{}-w-0", group.name), place.index, &place.uid)
}

/// Checks that all places but this one are the same.
fn ensure_others_unchanged(before: &[Worker], after: &[Worker], turn: usize) -> Result<()> {
    for (index, (before, after)) in before.iter().zip(after).enumerate() {
        ensure!(
            index == turn || before.place == after.place,
            "{:#?} became {:#?}",
            before.place,
            after.place
        );
    }
    Ok(())
}

async fn pods_deleted_one_after_another_are_each_replaced_by_the_control_plane(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(4, IDLE).pod(json!({"terminationGracePeriodSeconds": 1}));
    let group = scene.apply(&manifest).await?;
    let mut before = group.running(4).await?;
    // The last pod is deleted twice.
    for (round, turn) in [(1, 0), (2, 1), (3, 2), (4, 2)] {
        let victim = before[turn].place.clone();
        let start = Instant::now();
        group
            .namespace
            .kubectl(&["delete", "pod", &victim.pod, "--wait=false"])
            .await?;
        let after = group.at_generation(&before, round, START).await?;
        println!(
            "pod {round}: all run again after {:.1} s",
            start.elapsed().as_secs_f64()
        );
        ensure!(
            after[turn].place.pod == next_name(&group, &victim),
            "{victim:?} was replaced by {:?}",
            after[turn].place
        );
        ensure_others_unchanged(&before, &after, turn)?;
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
        before = after;
    }
    group.status_has("/inPlaceRestart/restarts", 4).await?;
    let replaced = |event: &&Event| {
        event
            .message
            .as_ref()
            .is_some_and(|note| note.contains("(1 in a new pod)"))
    };
    eventually("each restart is told with its new pod", START, async || {
        let events = group.events("RestartedInPlace").await?;
        ensure!(events.iter().filter(replaced).count() == 4, "{events:#?}");
        Ok(())
    })
    .await?;
    eventually("the Job counts four failures and four pods", START, async || {
        let jobs = group.jobs().await?;
        let status = jobs
            .first()
            .and_then(|job| job.status.clone())
            .unwrap_or_default();
        ensure!((status.failed, status.active) == (Some(4), Some(4)), "{status:?}");
        Ok(())
    })
    .await
}

async fn a_worker_that_keeps_failing_loses_its_pod(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(3, IDLE)
        .annotated("lockstep.dev/escalate-after", "2/10m")
        .annotated("lockstep.dev/max-backoff", "0s");
    let group = scene.apply(&manifest).await?;
    let first = group.running(3).await?;
    first[1].signal(Signal::SIGKILL)?;
    let before = group.restarted_in_place(&first, 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    before[1].signal(Signal::SIGKILL)?;
    let after = group.at_generation(&before, 2, START).await?;
    ensure!(
        after[1].place.pod == next_name(&group, &before[1].place),
        "{:?} became {:?}",
        before[1].place,
        after[1].place
    );
    ensure_others_unchanged(&before, &after, 1)?;
    let note = group.event("WorkerEscalated").await?.message.unwrap_or_default();
    ensure!(note.contains(&before[1].place.pod), "{note}");
    group.status_has("/inPlaceRestart/restarts", 2).await
}

async fn agent_told_to_go_without_worker_exits_143(scene: Scene) -> Result<()> {
    // The second worker never ends by itself, so the first stays parked until the grace period of
    // the second is over.
    let script = r#"
        [ "$JOB_COMPLETION_INDEX" = 0 ] && exec sleep 1000000
        trap 'echo stopping' TERM
        while :; do sleep 1000000 & wait $!; done"#;
    let manifest = Manifest::new(2, script).annotated("lockstep.dev/restart-grace", "40s");
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    before[0].signal(Signal::SIGKILL)?;
    group.logged(&before[1].place.pod, "stopping").await?;
    ensure!(
        before[0].agent.worker().is_none(),
        "the first worker was not held back"
    );

    let code = exit_code_of_deleted(&scene, &group, &before[0].place.pod).await?;
    ensure!(code == 143, "the exit code is {code}");
    // The other worker ignores the SIGTERM of a deletion too; nothing has to wait for it.
    scene
        .namespace
        .kubectl(&["delete", "jobset", &group.name, "--wait=false"])
        .await?;
    Ok(())
}

/// Deletes a pod, and returns the exit code of its worker container.
async fn exit_code_of_deleted(scene: &Scene, group: &Group, name: &str) -> Result<i32> {
    let pods: Api<Pod> = Api::namespaced(scene.access().client.clone(), &scene.namespace.name);
    let at = pods
        .get(name)
        .await?
        .metadata
        .resource_version
        .unwrap_or_default();
    let watched = WatchParams::default().fields(&format!("metadata.name={name}"));
    let mut changes = std::pin::pin!(pods.watch(&watched, &at).await?);
    group
        .namespace
        .kubectl(&["delete", "pod", name, "--wait=false"])
        .await?;
    let seen = async {
        while let Some(change) = changes.try_next().await? {
            let (WatchEvent::Modified(pod) | WatchEvent::Deleted(pod)) = change else {
                continue;
            };
            let state = container_status(&pod, CONTAINER).and_then(|status| status.state.as_ref());
            if let Some(ended) = state.and_then(|state| state.terminated.as_ref()) {
                return Ok(ended.exit_code);
            }
        }
        Err(anyhow::anyhow!("the pod went without an exit code"))
    };
    tokio::time::timeout(START, seen)
        .await
        .context("the container does not end")?
}

async fn suspend_and_resume(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(3, IDLE)).await?;
    let first = group.running(3).await?;
    first[0].signal(Signal::SIGKILL)?;
    let before = group.restarted_in_place(&first, 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    group.patch(json!({"spec": {"suspend": true}})).await?;
    group.condition("Suspended", START).await?;
    eventually("the pods are gone", START, async || {
        let pods = group.pods().await?;
        ensure!(pods.is_empty(), "{} are left", pods.len());
        Ok(())
    })
    .await?;
    ensure!(
        before.iter().all(|worker| !worker.process.is_alive()),
        "a worker outlived its pod"
    );

    group.patch(json!({"spec": {"suspend": false}})).await?;
    let after = group.running(3).await?;
    ensure!(
        places(&after)
            .iter()
            .all(|place| !places(&before).contains(place)),
        "{after:#?}"
    );
    ensure!(
        after.iter().all(|worker| worker.attempt >= 1),
        "the generation has fallen: {after:#?}"
    );
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    after[0].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&after, after[0].attempt + 1).await?;
    group.status_has("/inPlaceRestart/restarts", 2).await
}
