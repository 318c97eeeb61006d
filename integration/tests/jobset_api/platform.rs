//! The platform API: what it shows of a group, and which caller may ask for what. The test plays
//! the node daemon.

pub(crate) mod caller;
pub(crate) mod daemon;
mod documented;
pub(crate) mod grpcurl;
mod open;
mod operations;
mod python;
mod takeover;
mod worker_restarts;

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::ListParams;
use lockstep_api::{JobSet, annotations, labels};
use lockstep_integration::harness::eventually;
use lockstep_integration::host::free_addresses;
use lockstep_proto::platform::v1 as pb;
use serde_json::{Value, json};
use tonic::Code;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_types::StatusExt as _;

use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, hub_ca_in, jobset, replicated_job};
use caller::Caller;
use daemon::{Daemon, NODE};
use grpcurl::Grpcurl;

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![case!(a_platform_sees_groups_and_restarts_them alone)];
    cases.extend(documented::cases());
    cases.extend(python::cases());
    cases.extend(takeover::cases());
    cases
}

/// Two workers, each in a Job of its own, on the node that the test plays.
fn group() -> Value {
    let mut job = replicated_job("a", 2);
    if let Some(spec) = job["template"]["spec"].as_object_mut() {
        spec.remove("backoffLimit");
    }
    job["template"]["spec"]["template"]["spec"]["nodeName"] = json!(NODE);
    jobset(json!({
        "failurePolicy": {"maxRestarts": 5, "restartStrategy": "InPlaceRestart"},
        "replicatedJobs": [job],
    }))
}

/// Runs `act` while the node that the test plays exists. Kubernetes removes pods of a missing node
/// within a minute, or at once if the node has just been deleted.
pub(crate) async fn with_the_node<T>(scene: &Scene, act: impl AsyncFnOnce() -> Result<T>) -> Result<T> {
    let access = &scene.namespace.access;
    let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE}}).to_string();
    // The node exists already if a former case did not finish.
    access.kubectl(&["apply", "--filename", "-"], &node).await?;
    let result = Box::pin(act()).await;
    access.kubectl(&["delete", "node", NODE], "").await?;
    result
}

/// Creates the group and plays its daemon. Returns its JobSet and the connected daemon.
pub(crate) async fn played(scene: &Scene, hub: std::net::SocketAddr, ca: &str) -> Result<(JobSet, Daemon)> {
    play(scene, (group(), 2), hub, ca).await
}

/// The same for a JobSet with this many pods.
async fn play(
    scene: &Scene,
    (manifest, count): (Value, usize),
    hub: std::net::SocketAddr,
    ca: &str,
) -> Result<(JobSet, Daemon)> {
    let made = scene.create(manifest).await?;
    let of_it = ListParams::default().labels(&format!("{}={}", labels::JOBSET_UID, made.uid_str()));
    let pods = eventually("its pods", PATIENCE, async || {
        let pods = scene.api::<Pod>().list(&of_it).await?.items;
        ensure!(pods.len() == count, "{}", pods.len());
        Ok(pods)
    })
    .await?;
    // Jobs of a former JobSet may still be terminating.
    for pod in &pods {
        scene
            .pods_become(&pod.labels()[labels::BATCH_JOB_NAME], "Running")
            .await?;
    }
    let daemon = Daemon::connect(scene, hub, ca, &made.uid().context("no uid")?, &pods).await?;
    Ok((made, daemon))
}

async fn a_platform_sees_groups_and_restarts_them(scene: Scene) -> Result<()> {
    let [hub, platform, of_follower] = free_addresses()?;
    let dir = scene.control_plane().dir().join("platform");
    std::fs::create_dir_all(&dir)?;
    let (hub_flag, platform_flag) = (hub.to_string(), platform.to_string());
    let dir_flag = dir.display().to_string();
    let flags = [
        "--hub-bind-address",
        &hub_flag,
        "--hub-tls-dir",
        &dir_flag,
        "--platform-bind-address",
        &platform_flag,
    ];
    let control_plane = scene.control_plane();
    control_plane.restart_with(&flags).await?;
    let address = of_follower.to_string();
    let follower = control_plane.replica(
        "follower",
        &["--hub-tls-dir", &dir_flag, "--platform-bind-address", &address],
    )?;
    let result = with_the_node(&scene, async || {
        let ca = hub_ca_in(&dir).await?;
        eventually("the leader serves", PATIENCE, async || {
            open::health_is(platform, &ca, ServingStatus::Serving).await
        })
        .await?;
        open::it_describes_itself(platform, &ca).await?;
        let grpcurl = Grpcurl::new(platform, &dir.join("ca.crt")).await?;
        grpcurl.reads_what_is_public().await?;
        let platform = Caller::new(&scene, platform, &ca);
        Box::pin(groups_are_shown_and_restarted(
            &scene,
            (&platform, &grpcurl),
            hub,
            &ca,
        ))
        .await?;
        access_follows_rbac(&scene, &platform).await?;
        Box::pin(worker_restarts::some_workers_are_restarted(
            &scene, &platform, hub, &ca,
        ))
        .await?;
        follower.start().await?;
        follower.until_ready().await?;
        open::health_is(of_follower, &ca, ServingStatus::NotServing).await?;
        a_follower_says_what_it_is(&scene, &Caller::new(&scene, of_follower, &ca)).await
    })
    .await;
    // Other cases expect a control plane without a hub.
    control_plane.stop().await?;
    result
}

/// One long scenario, since each step needs the state of the step before.
async fn groups_are_shown_and_restarted(
    scene: &Scene,
    (platform, grpcurl): (&Caller, &Grpcurl),
    hub: std::net::SocketAddr,
    ca: &str,
) -> Result<()> {
    let namespace = &scene.namespace.name;
    let (made, daemon) = played(scene, hub, ca).await?;

    let admin = platform.account("platform", &["list", "watch", "patch"]).await?;
    let list = pb::ListGroupsRequest {
        namespace: namespace.clone(),
        ..pb::ListGroupsRequest::default()
    };
    let listed = eventually("the group runs", PATIENCE, async || {
        let mut groups = admin.list(list.clone()).await?.groups;
        ensure!(groups.len() == 1, "{} groups", groups.len());
        let group = groups.remove(0);
        ensure!(is_up(&group, 0) && is_counted(&group), "{group:?}");
        Ok(group)
    })
    .await?;
    ensure!(listed.name == "js" && Some(&listed.uid) == made.uid().as_ref());
    ensure!(listed.restarts == 0 && listed.max_restarts == 5 && listed.last_cause.is_none());
    let nodes: Vec<&str> = listed.workers.iter().map(|worker| worker.node.as_str()).collect();
    ensure!(nodes == [NODE, NODE], "{nodes:?}");

    let mut watch = admin.watch(namespace).await?;
    let group = watch.until("all that is", |group| is_up(group, 0)).await?;
    ensure!(group == listed, "{group:?} is not {listed:?}");
    watch.until_synced().await?;
    grpcurl.lists_groups(namespace, admin.token()).await?;

    // A dry run.
    let tried = admin.dry_run(namespace, "js", "night-shift").await?;
    ensure!(
        tried.effect() == pb::RestartEffect::InPlace && tried.generation == 1 && tried.level == "Process",
        "{tried:?}"
    );
    ensure!(
        tried.stopped == listed.workers && tried.left_alone.is_empty(),
        "{tried:?}"
    );
    let object = scene.api::<JobSet>().get("js").await?;
    ensure!(object.annotation(annotations::RESTART_REQUEST).is_none());

    // A restart by request does not count, and happens once per token.
    let answer = admin.restart(namespace, "js", "night-shift").await?;
    ensure!(answer.uid == listed.uid && answer.token == "night-shift");
    let group = watch.until("generation 1", |group| is_up(group, 1)).await?;
    ensure!(
        group.restarts == 0 && group.handled_request == "night-shift",
        "{group:?}"
    );
    ensure!(
        group
            .last_cause
            .as_ref()
            .is_some_and(|cause| cause.reason == "ManualRequest")
    );
    let object = scene.api::<JobSet>().get("js").await?;
    ensure!(object.annotation(annotations::RESTART_REQUEST) == Some("night-shift"));
    let again = eventually("the request is handled", PATIENCE, async || {
        let again = admin.restart(namespace, "js", "night-shift").await?;
        ensure!(again.handled, "{again:?}");
        Ok(again)
    })
    .await?;
    ensure!(again.generation == 1, "{again:?}");
    let tried = admin.dry_run(namespace, "js", "night-shift").await?;
    ensure!(
        tried.effect() == pb::RestartEffect::Nothing && tried.reason == "Handled",
        "{tried:?}"
    );

    // A restart by failure counts, and has a cause.
    daemon.exit(1, 3).await?;
    let group = watch.until("generation 2", |group| is_up(group, 2)).await?;
    let cause = group.last_cause.context("no cause")?;
    ensure!(group.restarts == 1 && cause.reason == "WorkerExited", "{cause:?}");
    ensure!(
        cause.exit == Some(pb::Exit { code: 3, signal: 0 }) && cause.node == NODE,
        "{cause:?}"
    );
    ensure!(cause.worker.is_some_and(|worker| worker.job == "js-a-1") && cause.time_unix_nanos > 0);

    // A restart after silence.
    daemon.hang(0).await?;
    let group = watch.until("generation 3", |group| is_up(group, 3)).await?;
    ensure!(group.restarts == 2, "{group:?}");
    ensure!(
        group
            .last_cause
            .is_some_and(|cause| cause.reason == "HeartbeatMissed")
    );

    nodes_are_listed(scene, platform).await?;
    operations::restarts_are_told(scene, &admin).await?;
    operations::stages_are_shown(scene, &admin).await?;
    operations::it_is_suspended_and_resumed(scene, &admin, &mut watch).await?;
    scene.api::<JobSet>().delete("js", &Default::default()).await?;
    watch.until_removed("js").await
}

/// Callers that may list JobSets in all namespaces see nodes as the daemon's hello describes them.
async fn nodes_are_listed(scene: &Scene, platform: &Caller) -> Result<()> {
    let here = platform.account("of-nodes-here", &["list"]).await?;
    refused(Code::PermissionDenied, "in all namespaces", here.nodes().await)?;
    let name = format!("{}-of-nodes", scene.namespace.name);
    let role = [
        "create",
        "clusterrole",
        &name,
        "--verb=list",
        "--resource=jobsets.jobset.x-k8s.io",
    ];
    let (of_role, to) = (
        format!("--clusterrole={name}"),
        format!("--serviceaccount={}:of-nodes-here", scene.namespace.name),
    );
    let binding = ["create", "clusterrolebinding", &name, &of_role, &to];
    scene.namespace.kubectl(&role).await?;
    scene.namespace.kubectl(&binding).await?;
    let listed = eventually("nodes are listed", PATIENCE, async || {
        let nodes = here.nodes().await?;
        ensure!(nodes.len() == 1, "{nodes:?}");
        Ok(nodes)
    })
    .await;
    let delete = ["delete", "clusterrole,clusterrolebinding", &name];
    scene.namespace.kubectl(&delete).await?;
    let node = &listed?[0];
    ensure!(
        (node.name.as_str(), node.level.as_str()) == (NODE, "Container"),
        "{node:?}"
    );
    ensure!(
        (node.daemon_version.as_str(), node.protocol) == ("9.9.9", 2),
        "{node:?}"
    );
    let nri = node.nri.as_ref().context("no NRI")?;
    ensure!(
        nri.state() == pb::RuntimeAccessState::Away && nri.detail == "no socket",
        "{nri:?}"
    );
    Ok(())
}

fn is_up(group: &pb::Group, generation: u64) -> bool {
    group.phase() == pb::GroupPhase::InSync
        && (group.generation, group.released) == (generation, generation)
        && (group.workers_up, group.workers_expected) == (2, 2)
}

/// True if the status counts all Jobs of the group correctly, which it does some time after their
/// pods run.
fn is_counted(group: &pb::Group) -> bool {
    let is_counted = |stage: &pb::Stage| {
        let (expected, ready, active) = (stage.jobs_expected, stage.jobs_ready, stage.jobs_active);
        stage.started && (ready, active) == (expected, expected)
    };
    !group.stages.is_empty() && group.stages.iter().all(is_counted)
}

fn refused<T>(code: Code, text: &str, answer: Result<T, tonic::Status>) -> Result<()> {
    let Err(status) = answer else {
        bail!("it is served, not refused: {code:?}")
    };
    ensure!(
        status.code() == code && status.message().contains(text),
        "{status}"
    );
    says_why_to_programs(&status)
}

/// Every refusal has a reason, and the details that its code promises.
fn says_why_to_programs(status: &tonic::Status) -> Result<()> {
    let details = status.check_error_details()?;
    let info = details
        .error_info()
        .with_context(|| format!("no reason: {status}"))?;
    ensure!(
        info.domain == "lockstep.dev" && !info.reason.is_empty(),
        "{info:?}"
    );
    let promised = match status.code() {
        Code::InvalidArgument => {
            let bad = details.bad_request().map(|bad| bad.field_violations.as_slice());
            let field = bad.and_then(|bad| bad.first()).map(|bad| bad.field.as_str());
            field.is_some_and(|field| status.message().starts_with(&format!("{field}: ")))
        }
        Code::FailedPrecondition => details.precondition_failure().is_some(),
        Code::Unavailable | Code::ResourceExhausted => details.retry_info().is_some(),
        Code::PermissionDenied => info.metadata.contains_key("verb") && info.metadata.contains_key("user"),
        Code::NotFound => info.metadata.contains_key("namespace") && info.metadata.contains_key("jobset"),
        _ => true,
    };
    ensure!(promised, "{details:?}");
    Ok(())
}

async fn access_follows_rbac(scene: &Scene, platform: &Caller) -> Result<()> {
    let namespace = &scene.namespace.name;
    let here = || pb::ListGroupsRequest {
        namespace: namespace.clone(),
        ..pb::ListGroupsRequest::default()
    };
    let nobody = platform.with_token("made up");
    refused(Code::Unauthenticated, "token", nobody.list(here()).await)?;

    let stranger = platform.account("stranger", &[]).await?;
    refused(
        Code::PermissionDenied,
        "may not list",
        stranger.list(here()).await,
    )?;
    refused(
        Code::PermissionDenied,
        "may not patch",
        stranger.restart(namespace, "js", "t").await,
    )?;

    let reader = platform.account("reader", &["list"]).await?;
    reader.list(here()).await?;
    let everywhere = pb::ListGroupsRequest::default();
    refused(
        Code::PermissionDenied,
        "in all namespaces",
        reader.list(everywhere).await,
    )?;
    refused(
        Code::PermissionDenied,
        "may not patch",
        reader.restart(namespace, "js", "t").await,
    )?;

    let other = pb::ListGroupsRequest {
        namespace: "No namespace".into(),
        ..pb::ListGroupsRequest::default()
    };
    refused(Code::InvalidArgument, "namespace: ", reader.list(other).await)?;
    let restarter = platform.account("restarter", &["patch"]).await?;
    refused(
        Code::NotFound,
        "name: ",
        restarter.restart(namespace, "other", "t").await,
    )?;
    refused(
        Code::InvalidArgument,
        "token: ",
        restarter.restart(namespace, "js", "\n").await,
    )?;
    refused(
        Code::PermissionDenied,
        "may not patch",
        reader.dry_run(namespace, "js", "t").await,
    )?;
    refused(
        Code::PermissionDenied,
        "may not patch",
        reader.set_suspended(namespace, "js", true).await,
    )?;
    refused(
        Code::NotFound,
        "name: ",
        restarter.set_suspended(namespace, "other", true).await,
    )?;
    refused(
        Code::PermissionDenied,
        "may not list",
        restarter.restarts(namespace, "js").await,
    )
}

async fn a_follower_says_what_it_is(scene: &Scene, follower: &Caller) -> Result<()> {
    let reader = follower.account("of-follower", &["list"]).await?;
    let here = pb::ListGroupsRequest {
        namespace: scene.namespace.name.clone(),
        ..pb::ListGroupsRequest::default()
    };
    refused(Code::Unavailable, "does not lead", reader.list(here).await)
}
