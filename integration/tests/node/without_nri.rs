//! Nodes whose container runtime cannot put the agent into containers: the pod templates contain
//! it.

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::container_status;
use lockstep_integration::harness::{Group, Manifest, Worker};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::heartbeat::BEATING;
use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(templates_bring_the_agent_along alone)]
}

const INJECT: &str = "nodeDaemon.injectAgent=true";

async fn templates_bring_the_agent_along(scene: Scene) -> Result<()> {
    let without_nri = [INJECT, "nodeDaemon.nriSocket=/var/run/nri/none.sock"];
    scene.product.reinstall(&without_nri).await?;
    let result = async {
        let group = restarts_in_place(&scene, "without").await?;
        is_plain_without_a_command(&scene).await?;
        // With NRI, the daemon puts no second agent in front of the first.
        scene.product.reinstall(&[INJECT]).await?;
        restarts_in_place(&scene, "beside").await?;
        group_outlives_the_setting(&scene, &group).await
    };
    let result = result.await;
    scene.product.reinstall(&[]).await?;
    result
}

/// Workers still restart in place by their existing agents after the way of adding agents changes.
async fn group_outlives_the_setting(scene: &Scene, brought: &Group) -> Result<()> {
    scene.product.reinstall(&[]).await?;
    let before = brought.running(2).await?;
    before[0].signal(Signal::SIGKILL)?;
    brought.restarted_in_place(&before, before[0].attempt + 1).await?;
    // Only the image sets the command, and the kubelet restarts no container: judged by its
    // template, this worker would be Plain, and would not restart in place.
    let image = json!({"image": "localhost/entrypoint:1", "command": null});
    let manifest = Manifest::new(2, "")
        .named("put")
        .container(image)
        .restart_policy("Never");
    let put = scene.apply(&manifest).await?;
    let before = put.running(2).await?;
    scene.product.reinstall(&[INJECT]).await?;
    before[1].signal(Signal::SIGKILL)?;
    put.restarted_in_place(&before, 1).await?;
    put.status_has("/inPlaceRestart/kind", "Supervised").await
}

/// Checks that a hardened group of two restarts once, by agents of the template.
async fn restarts_in_place(scene: &Scene, name: &str) -> Result<Group> {
    let manifest = Manifest::new(2, BEATING)
        .named(name)
        .annotated("lockstep.dev/heartbeat-timeout", "10s")
        .pod(json!({"securityContext": {"runAsUser": 1000, "runAsNonRoot": true}}))
        .container(json!({"securityContext": {
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        }}));
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    ensure!(before.iter().all(came_with_the_template), "{before:#?}");
    for pod in group.pods().await? {
        container_status(&pod, "lockstep-agent").context("no init container")?;
    }
    before[1].signal(Signal::SIGKILL)?;
    let after = group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    after[0].signal(Signal::SIGSTOP)?;
    group.restarted_in_place(&after, 2).await?;
    group.status_has("/inPlaceRestart/kind", "Supervised").await?;
    group.status_has("/inPlaceRestart/level", "Process").await?;
    Ok(group)
}

/// There is one agent, and it does not have the container's id, which node daemons pass.
fn came_with_the_template(worker: &Worker) -> bool {
    let args = worker.agent.args();
    let agents = args
        .iter()
        .filter(|arg| arg.ends_with("lockstep-pod-agent"))
        .count();
    agents == 1 && !args.iter().any(|arg| arg == "--container-id")
}

async fn is_plain_without_a_command(scene: &Scene) -> Result<()> {
    let image = json!({"image": "localhost/entrypoint:1", "command": null});
    let manifest = Manifest::new(1, "").named("image").container(image);
    let group = scene.apply(&manifest).await?;
    let why = group
        .event("RestartNotSupervised")
        .await?
        .message
        .unwrap_or_default();
    ensure!(
        why.contains("container worker of replicatedJob w has no command"),
        "{why}"
    );
    group.status_has("/inPlaceRestart/kind", "Plain").await
}
