//! `kubectl lockstep demo` on a real node: it shows a restart, and leaves nothing behind.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use tokio::process::Command;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(the_plugin_shows_a_restart_and_removes_what_it_made)]
}

/// The plugin, built where this test was.
async fn plugin() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let dir = test
        .parent()
        .and_then(Path::parent)
        .context("no target directory")?;
    let built = Command::new("cargo")
        .args(["build", "--quiet", "--locked", "--package", "lockstep-cli"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .status()
        .await?;
    ensure!(built.success(), "cargo build failed");
    Ok(dir.join("kubectl-lockstep"))
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
        seen["restart"]["generation"] == 1 && seen["restart"]["rung"] == "Process",
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
