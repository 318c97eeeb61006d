//! `kubectl lockstep demo` when it cannot succeed: it says why, and leaves nothing behind.
//! `demo.rs` of the node tests has the demo on a real node.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::{Namespace, Node};
use kube::ResourceExt;
use kube::api::{Api, ListParams, PostParams};
use lockstep_api::JobSet;
use lockstep_integration::harness::eventually;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use super::{Ran, command, lockstep};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

/// A leader and a node daemon, as far as the demo checks. Kubernetes removes pods of missing nodes
/// after a while.
async fn installed(scene: &Scene) -> Result<()> {
    let now = jiff::Timestamp::now();
    let name = format!("node-of-{}", scene.namespace.name);
    let node = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"unschedulable": true}}))?;
    let nodes: Api<Node> = Api::all(scene.client());
    nodes.create(&PostParams::default(), &node).await?;
    let items = json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lockstep-control-plane"},
            "spec": {"holderIdentity": "cp-0", "leaseDurationSeconds": 3600, "renewTime": format!("{now:.6}")}},
        {"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "daemon", "labels": {
                "app.kubernetes.io/name": "lockstep", "app.kubernetes.io/component": "node-daemon"}},
            "spec": {"nodeName": name, "containers": [{"name": "node-daemon", "image": "none"}]}},
    ]});
    scene
        .namespace
        .kubectl_with(&["apply", "--filename", "-"], &items.to_string())
        .await?;
    let ready = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    let patch = [
        "patch",
        "pod",
        "daemon",
        "--subresource=status",
        "--type=merge",
        "--patch",
    ];
    scene
        .namespace
        .kubectl(&[&patch[..], &[&ready.to_string()]].concat())
        .await?;
    Ok(())
}

/// Waits until nothing of a demo is left in the namespace of the scene.
async fn nothing_is_left(scene: &Scene) -> Result<()> {
    eventually("no JobSet of a demo is left", PATIENCE, async || {
        let left = scene.api::<JobSet>().list(&ListParams::default()).await?.items;
        let left: Vec<_> = left.iter().map(ResourceExt::name_any).collect();
        ensure!(left == ["js"], "{left:?}");
        Ok(())
    })
    .await
}

pub(super) async fn a_demo_that_cannot_end_well_leaves_nothing_behind(scene: Scene) -> Result<()> {
    let namespace = scene.namespace.name.clone();
    scene
        .create(jobset(json!({"replicatedJobs": [replicated_job("a", 1)]})))
        .await?;
    let demo = ["demo", "--system-namespace", &namespace, "--timeout", "3s"];
    let refused = lockstep(&scene, &demo).await?;
    refused.says(
        1,
        &[&format!(
            "error: Lockstep is not installed in namespace {namespace}: no control plane has ever led there"
        )],
    )?;
    ensure!(!refused.err.contains("created "), "{refused:#?}");

    installed(&scene).await?;
    // No kubelet starts its pods.
    let tried = lockstep(&scene, &demo).await?;
    tried.says(
        3,
        &[
            &format!("note: created JobSet {namespace}/lockstep-demo-"),
            "error: not done within 3s: ",
            "0 of 4 workers run",
            &format!("note: removed JobSet {namespace}/lockstep-demo-"),
        ],
    )?;
    ensure!(tried.out.is_empty(), "{tried:#?}");
    nothing_is_left(&scene).await?;

    in_a_namespace_of_its_own(&scene, &demo).await?;
    when_it_is_interrupted(&scene, &demo[..3]).await?;
    lockstep(&scene, &["demo", "--workers", "0"])
        .await?
        .says(64, &["--workers <NUMBER>", "0 is not in 1..=64"])?;
    // The demo made nothing, so it does not report anything as left behind.
    let may_not = [&demo[..], &["--as", "system:serviceaccount:nobody:nobody"]].concat();
    let refused = lockstep(&scene, &may_not).await?;
    refused.says(
        1,
        &["error: create JobSet ", "cannot create resource \"jobsets\""],
    )?;
    ensure!(!refused.err.contains("still there"), "{refused:#?}");
    let quota = ["create", "quota", "one", "--hard=count/jobsets.jobset.x-k8s.io=1"];
    scene.namespace.kubectl(&quota).await?;
    // Kubernetes may take minutes to count objects of a new definition, and refuses them until
    // then.
    eventually("the quota is there", PATIENCE, async || {
        lockstep(&scene, &demo).await?.says(1, &["quota: one"])
    })
    .await?;
    nothing_is_left(&scene).await
}

async fn in_a_namespace_of_its_own(scene: &Scene, demo: &[&str]) -> Result<()> {
    let output = command(scene).await?.args(demo).output().await?;
    let tried = Ran::of(output);
    tried.says(3, &["0 of 4 workers run"])?;
    let made = tried
        .err
        .split("created JobSet ")
        .nth(1)
        .and_then(|rest| rest.split('/').next());
    let made = made.with_context(|| format!("{tried:#?}"))?;
    ensure!(made.starts_with("lockstep-demo-"), "{tried:#?}");
    tried.says(
        3,
        &[&format!(
            "note: deleted namespace {made}; Kubernetes removes everything in it"
        )],
    )?;
    let namespaces: Api<Namespace> = Api::all(scene.client());
    let left = namespaces.get_opt(made).await?;
    ensure!(
        left.is_none_or(|left| left.metadata.deletion_timestamp.is_some()),
        "namespace {made} stays"
    );
    Ok(())
}

/// As Ctrl-C does.
async fn when_it_is_interrupted(scene: &Scene, demo: &[&str]) -> Result<()> {
    let running = command(scene)
        .await?
        .args(["--namespace", &scene.namespace.name])
        .args(demo)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let pid = running.id().context("it has ended")?;
    eventually("its JobSet is there", PATIENCE, async || {
        let made = scene.api::<JobSet>().list(&ListParams::default()).await?.items;
        ensure!(made.len() == 2, "{} JobSets", made.len());
        Ok(())
    })
    .await?;
    kill(Pid::from_raw(i32::try_from(pid)?), Signal::SIGINT)?;
    let ended = Ran::of(tokio::time::timeout(PATIENCE, running.wait_with_output()).await??);
    ended.says(130, &["note: interrupted", "note: removed JobSet "])?;
    nothing_is_left(scene).await
}
