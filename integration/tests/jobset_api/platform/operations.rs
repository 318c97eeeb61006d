//! What platforms can look up and do apart from restarts. The group of the test is `js`, at
//! generation 3 after a request, an exit and a silence.

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use lockstep_proto::platform::v1 as pb;

use super::caller::{Caller, Watch};
use crate::scene::{PATIENCE, Scene};

/// The leader remembers restarts, the newest first.
pub(super) async fn restarts_are_told(scene: &Scene, admin: &Caller) -> Result<()> {
    let told = eventually("all restarts are done", PATIENCE, async || {
        let told = admin.restarts(&scene.namespace.name, "js").await?;
        let done = |restart: &pb::Restart| restart.outcome() == pb::RestartOutcome::Done;
        ensure!(told.restarts.iter().all(done), "{told:?}");
        Ok(told)
    })
    .await?;
    let reasons: Vec<_> = told
        .restarts
        .iter()
        .map(|restart| (restart.generation, reason(restart)))
        .collect();
    ensure!(
        reasons == [(3, "HeartbeatMissed"), (2, "WorkerExited"), (1, "ManualRequest")],
        "{told:?}"
    );
    for restart in &told.restarts {
        ensure!(restart.scope() == pb::RestartScope::Group && restart.level == "Process");
        ensure!(restart.workers == 2 && restart.replaced_pods == 0);
        ensure!(
            told.since_unix_nanos < restart.begun_unix_nanos
                && restart.begun_unix_nanos < restart.ended_unix_nanos,
            "{restart:?}"
        );
        let phases: Vec<_> = restart.phases.iter().map(|phase| phase.name.as_str()).collect();
        ensure!(
            ["detect", "write", "stop", "park", "release", "run"]
                .iter()
                .all(|name| phases.contains(name)),
            "{phases:?}"
        );
    }
    Ok(())
}

fn reason(restart: &pb::Restart) -> &str {
    restart
        .cause
        .as_ref()
        .map(|cause| cause.reason.as_str())
        .unwrap_or_default()
}

/// Stages count Jobs as the status does.
pub(super) async fn stages_are_shown(scene: &Scene, admin: &Caller) -> Result<()> {
    eventually("the stage is ready", PATIENCE, async || {
        let list = pb::ListGroupsRequest {
            namespace: scene.namespace.name.clone(),
            omit_workers: true,
            ..pb::ListGroupsRequest::default()
        };
        let groups = admin.list(list).await?.groups;
        let stages = &groups.first().context("no group")?.stages;
        let expected = pb::Stage {
            name: "a".into(),
            started: true,
            jobs_expected: 2,
            jobs_ready: 2,
            jobs_active: 2,
            ..pb::Stage::default()
        };
        ensure!(*stages == [expected], "{stages:?}");
        Ok(())
    })
    .await
}

/// This sets `spec.suspend`, which the reconciler passes on to the Jobs.
pub(super) async fn it_is_suspended_and_resumed(
    scene: &Scene,
    admin: &Caller,
    watch: &mut Watch,
) -> Result<()> {
    let namespace = &scene.namespace.name;
    let version = async || -> Result<Option<String>> {
        Ok(scene.api::<JobSet>().get("js").await?.metadata.resource_version)
    };
    let done = admin.set_suspended(namespace, "js", false).await?;
    ensure!(!done.changed, "it runs already: {done:?}");

    let done = admin.set_suspended(namespace, "js", true).await?;
    ensure!(done.changed, "{done:?}");
    ensure!(scene.api::<JobSet>().get("js").await?.is_suspended());
    watch
        .until("it is suspended", |group| {
            group.phase() == pb::GroupPhase::Suspended
        })
        .await?;
    eventually("its Jobs are suspended", PATIENCE, async || {
        let job = scene.api::<Job>().get("js-a-0").await?;
        ensure!(job.spec.is_some_and(|spec| spec.suspend == Some(true)));
        Ok(())
    })
    .await?;
    let tried = admin.dry_run(namespace, "js", "again").await?;
    ensure!(tried.reason == "Suspended", "{tried:?}");

    // Waits until all writes that follow from it are done.
    eventually("nothing more is written", PATIENCE, async || {
        let before = version().await?;
        let again = admin.set_suspended(namespace, "js", true).await?;
        ensure!(!again.changed && again.uid == done.uid, "{again:?}");
        ensure!(version().await? == before);
        Ok(())
    })
    .await?;

    let done = admin.set_suspended(namespace, "js", false).await?;
    ensure!(done.changed, "{done:?}");
    watch
        .until("it is resumed", |group| {
            group.phase() != pb::GroupPhase::Suspended
        })
        .await?;
    Ok(())
}
