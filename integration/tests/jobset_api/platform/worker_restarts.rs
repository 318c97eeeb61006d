//! Worker restarts: a driver, and two parameter servers that may each restart without the others.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use lockstep_api::{JobSet, annotations};
use lockstep_integration::harness::eventually;
use lockstep_proto::platform::v1 as pb;
use lockstep_proto::platform::v1::target::Workers;
use serde_json::{Value, json};
use tonic::Code;

use super::caller::{Caller, Watch};
use super::daemon::NODE;
use super::{is_counted, play, refused};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

fn group() -> Value {
    let job = |name: &str, replicas| {
        let mut job = replicated_job(name, replicas);
        if let Some(spec) = job["template"]["spec"].as_object_mut() {
            spec.remove("backoffLimit");
        }
        job["template"]["spec"]["template"]["spec"]["nodeName"] = json!(NODE);
        job
    };
    let mut servers = job("ps", 2);
    servers["template"]["metadata"] = json!({"annotations": {annotations::RESTART_SCOPE: "worker"}});
    jobset(json!({
        "failurePolicy": {"maxRestarts": 5, "restartStrategy": "InPlaceRestart"},
        "replicatedJobs": [job("driver", 1), servers],
    }))
}

/// A worker, or every worker of its pod.
fn worker(job: &str, completion_index: u32, container: &str) -> Workers {
    Workers::Worker(pb::WorkerIdentity {
        job: job.into(),
        completion_index,
        container: container.into(),
    })
}

fn job_of(worker: &pb::Worker) -> &str {
    let identity = worker.identity.as_ref();
    identity.map(|identity| identity.job.as_str()).unwrap_or_default()
}

/// For each worker its Job, its number, and true if it runs.
fn numbers(group: &pb::Group) -> Vec<(&str, u64, bool)> {
    let runs = |worker: &pb::Worker| worker.phase() == pb::WorkerPhase::Running;
    let one = |worker| (job_of(worker), worker.generation, runs(worker));
    group.workers.iter().map(one).collect()
}

async fn until_numbers(watch: &mut Watch, expected: [u64; 3], handled: &str) -> Result<pb::Group> {
    let expected: Vec<_> = ["js-driver-0", "js-ps-0", "js-ps-1"]
        .into_iter()
        .zip(expected)
        .map(|(job, number)| (job, number, true))
        .collect();
    watch
        .until(&format!("{expected:?} after {handled:?}"), |group| {
            numbers(group) == expected && group.handled_worker_restart == handled
        })
        .await
}

/// Only the named workers restart. A refusal names the field.
pub(super) async fn some_workers_are_restarted(
    scene: &Scene,
    platform: &Caller,
    hub: SocketAddr,
    ca: &str,
) -> Result<()> {
    let namespace = &scene.namespace.name;
    let admin = platform.account("shifts", &["list", "watch", "patch"]).await?;
    let (_, daemon) = play(scene, (group(), 3), hub, ca).await?;
    let before = until_up(scene, &admin).await?;
    let mut watch = admin.watch(namespace).await?;
    until_numbers(&mut watch, [0, 0, 0], "").await?;
    watch.until_synced().await?;

    // A dry run.
    let servers = || Workers::ReplicatedJob("ps".into());
    let tried = admin.dry_run_workers(namespace, servers(), "first").await?;
    ensure!(
        tried.effect() == pb::RestartEffect::InPlace && (tried.generation, &*tried.level) == (2, "Process"),
        "{tried:?}"
    );
    let stopped: Vec<&str> = tried.stopped.iter().map(job_of).collect();
    ensure!(stopped == ["js-ps-0", "js-ps-1"], "{tried:?}");
    let alone = tried.left_alone.first().context("no worker is left alone")?;
    ensure!(
        alone.worker.as_ref().map(job_of) == Some("js-driver-0")
            && alone.reason() == pb::LeftAloneReason::NotNamed,
        "{tried:?}"
    );
    let object = scene.api::<JobSet>().get("js").await?;
    ensure!(object.annotation(annotations::RESTART_WORKERS).is_none());

    // One worker restarts: no other is touched, and nothing is counted.
    let one = || Some(worker("js-ps-1", 0, ""));
    let asked = admin.restart_workers(namespace, one(), "first").await?;
    ensure!(
        asked.token == "first" && asked.uid == before.uid && !asked.handled,
        "{asked:?}"
    );
    let group = until_numbers(&mut watch, [0, 0, 1], "first").await?;
    ensure!((group.generation, group.restarts) == (0, 0), "{group:?}");
    ensure!(
        group.workers[..2] == before.workers[..2],
        "{group:?} after {before:?}"
    );

    // A repeated request restarts nothing. A Job takes the next number.
    let again = admin.restart_workers(namespace, one(), "first").await?;
    ensure!(again.handled, "{again:?}");
    let tried = admin
        .dry_run_workers(namespace, worker("js-ps-1", 0, ""), "first")
        .await?;
    ensure!(
        tried.effect() == pb::RestartEffect::Nothing && tried.reason == "Handled",
        "{tried:?}"
    );
    let of_job = Some(Workers::Job("js-ps-0".into()));
    until_accepted(&admin, namespace, of_job, "second").await?;
    let group = until_numbers(&mut watch, [0, 2, 1], "second").await?;
    ensure!(
        group.workers[0] == before.workers[0] && group.restarts == 0,
        "{group:?}"
    );
    until_accepted(&admin, namespace, Some(servers()), "third").await?;
    let group = watch
        .until("both servers have newer numbers", |group| {
            let servers = numbers(group);
            group.handled_worker_restart == "third"
                && servers
                    .iter()
                    .skip(1)
                    .all(|(_, number, runs)| *number > 2 && *runs)
        })
        .await?;
    ensure!(
        group.workers[0] == before.workers[0] && group.generation == 0,
        "{group:?}"
    );

    what_cannot_be_is_refused(platform, &admin, namespace).await?;
    they_are_told(namespace, &admin).await?;
    drop(daemon);
    scene.api::<JobSet>().delete("js", &Default::default()).await?;
    watch.until_removed("js").await
}

/// Waits until all workers run and are counted.
async fn until_up(scene: &Scene, admin: &Caller) -> Result<pb::Group> {
    let list = pb::ListGroupsRequest {
        namespace: scene.namespace.name.clone(),
        ..pb::ListGroupsRequest::default()
    };
    eventually("all run", PATIENCE, async || {
        let group = admin.list(list.clone()).await?.groups.pop().context("no group")?;
        ensure!(
            (group.workers_up, group.workers_expected) == (3, 3) && is_counted(&group),
            "{group:?}"
        );
        Ok(group)
    })
    .await
}

/// Repeats the request until the leader has handled the one before.
async fn until_accepted(admin: &Caller, namespace: &str, only: Option<Workers>, token: &str) -> Result<()> {
    eventually(&format!("{token} is taken"), PATIENCE, async || {
        Ok(admin.restart_workers(namespace, only.clone(), token).await?)
    })
    .await?;
    Ok(())
}

async fn what_cannot_be_is_refused(platform: &Caller, admin: &Caller, namespace: &str) -> Result<()> {
    let job = |name: &str| Some(Workers::Job(name.into()));
    for (only, code, text) in [
        (None, Code::InvalidArgument, "only: is required"),
        (job("No job"), Code::InvalidArgument, "only.job: must be a name"),
        (job("js-ps-2"), Code::NotFound, "only.job: the JobSet"),
        (
            Some(Workers::ReplicatedJob("eval".into())),
            Code::NotFound,
            "only.replicated_job: the JobSet",
        ),
        (
            Some(worker("js-ps-0", 1, "")),
            Code::NotFound,
            "only.worker.completion_index: the JobSet",
        ),
        (
            Some(worker("js-ps-0", 0, "sidecar")),
            Code::NotFound,
            "only.worker.container: the JobSet",
        ),
        (
            job("js-driver-0"),
            Code::FailedPrecondition,
            "only: the workers of replicatedJob driver cannot be restarted without the others: they run in step",
        ),
    ] {
        let answer = admin.restart_workers(namespace, only, "refused").await;
        refused(code, text, answer)?;
    }
    let only = || Workers::ReplicatedJob("driver".into());
    let tried = admin.dry_run_workers(namespace, only(), "t").await;
    refused(Code::FailedPrecondition, "they run in step", tried)?;

    let watcher = platform.account("watcher", &["list", "watch"]).await?;
    let only = || Workers::ReplicatedJob("ps".into());
    let asked = watcher.restart_workers(namespace, Some(only()), "t").await;
    refused(Code::PermissionDenied, "may not patch", asked)?;
    let tried = watcher.dry_run_workers(namespace, only(), "t").await;
    refused(Code::PermissionDenied, "may not patch", tried)
}

/// The leader remembers each as the restart of a single worker.
async fn they_are_told(namespace: &str, admin: &Caller) -> Result<()> {
    eventually("all restarts are told", PATIENCE, async || {
        let told = admin.restarts(namespace, "js").await?.restarts;
        let done = |restart: &pb::Restart| {
            restart.outcome() == pb::RestartOutcome::Done
                && restart.scope() == pb::RestartScope::Worker
                && (restart.workers, restart.replaced_pods) == (1, 0)
        };
        // One worker, then one, then two.
        ensure!(told.len() == 4 && told.iter().all(done), "{told:?}");
        Ok(())
    })
    .await
}
