//! Commands on a real node: the demo of `kubectl lockstep` shows a restart and leaves nothing
//! behind; the check finds no fault in a sound installation; the commands of the testbed work.

use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Manifest, eventually};
use serde_json::Value;
use tokio::process::Command;

use crate::control_plane;
use crate::support::{Case, Scene, case};

/// How long an installation may take to be well again.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(the_plugin_shows_a_restart_and_removes_what_it_made),
        case!(a_healthy_installation_is_said_to_be_well alone),
        case!(programs_of_the_cluster_are_found_on_a_node),
    ]
}

/// This is the call in CONTRIBUTING.md.
async fn programs_of_the_cluster_are_found_on_a_node(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(1, IDLE)).await?;
    let workers = group.running(1).await?;
    let place = &workers.first().context("no worker")?.place;
    let name = scene.product.instance().await?;
    let output = Command::new(env!("CARGO_BIN_EXE_lockstep-testbed"))
        .args(["exec-node", "1", "--name", &name, "--"])
        .args(["ctr", "-n", "k8s.io", "containers", "ls"])
        .stdin(Stdio::null())
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success() && said.contains(&place.container),
        "no {place:?}: {said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

/// The plugin, built with the settings of this test.
async fn plugin() -> Result<PathBuf> {
    control_plane::build("lockstep-cli", "kubectl-lockstep").await
}

/// The output of the plugin.
pub(crate) async fn kubectl_lockstep(scene: &Scene, args: &[&str]) -> Result<String> {
    let mut command = Command::new(plugin().await?);
    command.arg("--kubeconfig").arg(&scene.access().kubeconfig);
    let output = command.args(args).stdin(Stdio::null()).output().await?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

async fn a_healthy_installation_is_said_to_be_well(scene: Scene) -> Result<()> {
    let plugin = plugin().await?;
    let run = async |args: &[&str]| {
        let mut command = Command::new(&plugin);
        command.arg("--kubeconfig").arg(&scene.access().kubeconfig);
        Ok::<_, anyhow::Error>(command.args(args).stdin(Stdio::null()).output().await?)
    };
    // A former case may have disturbed the product, which recovers by itself.
    eventually("all is well", PATIENCE, async || {
        let checked = run(&["check"]).await?;
        let said = String::from_utf8_lossy(&checked.stdout);
        ensure!(
            checked.status.code() == Some(0) && said.ends_with("\nAll is well.\n"),
            "{:?}: {said}{}",
            checked.status,
            String::from_utf8_lossy(&checked.stderr)
        );
        ensure!(said.contains("✓ the platform API answers (port "), "{said}");
        Ok(())
    })
    .await?;
    // This is how the daemon has found its containerd.
    eventually("agents get into containers", PATIENCE, async || {
        let nodes = run(&["nodes", "--output", "json"]).await?;
        let nodes: Value = serde_json::from_slice(&nodes.stdout)?;
        let node = &nodes[0];
        ensure!(node["connected"] == true && node["level"] == "process", "{nodes}");
        for way in ["criHealth", "nriHealth"] {
            ensure!(node[way]["state"] == "well", "{nodes}");
        }
        Ok(())
    })
    .await
}

async fn the_plugin_shows_a_restart_and_removes_what_it_made(scene: Scene) -> Result<()> {
    let namespace = &scene.namespace.name;
    let output = Command::new(plugin().await?)
        .arg("--kubeconfig")
        .arg(&scene.access().kubeconfig)
        .args([
            "--namespace",
            namespace,
            "demo",
            "--image",
            "localhost/busybox:1",
            "--output",
            "json",
        ])
        .stdin(Stdio::null())
        .output()
        .await?;
    let told = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{told}");
    let seen: Value = serde_json::from_slice(&output.stdout)?;
    ensure!(seen["kept"] == "in the same 4 pods and containers", "{seen}");
    ensure!(
        seen["restart"]["generation"] == 1 && seen["restart"]["level"] == "Process",
        "{seen}"
    );
    let cause = seen["restart"]["cause"].as_str().unwrap_or_default();
    ensure!(cause.contains("exited with code 137"), "{seen}");
    ensure!(told.contains("note: removed JobSet "), "{told}");
    let left = ["get", "jobsets", "--output", "name"];
    let left = scene.namespace.kubectl(&left).await?;
    ensure!(left.trim().is_empty(), "{left}");
    Ok(())
}
