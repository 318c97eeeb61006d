//! The Python package as a platform gets it: the wheel, in an environment of its own, against a
//! live control plane.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::eventually;
use lockstep_proto::platform::v1 as pb;
use tokio::process::Command;

use super::caller::Caller;
use super::{is_up, played};
use crate::cli::with_a_hub;
use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene};

const CLIENT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../clients/python");

pub(super) fn cases() -> Vec<Case> {
    vec![case!(a_platform_by_the_python_package_alone alone)]
}

async fn a_platform_by_the_python_package_alone(scene: Scene) -> Result<()> {
    // This comes first, as it may take long.
    let python = installed().await?;
    with_a_hub(&scene, async |hub, platform| {
        let ca = scene.hub_ca().await?;
        let (_, _daemon) = played(&scene, hub, &ca).await?;
        let caller = Caller::new(&scene, platform, &ca);
        let writer = caller.account("writer", &["list", "watch", "patch"]).await?;
        let reader = caller.account("looker", &["list", "watch"]).await?;
        eventually("the group runs", PATIENCE, async || {
            let list = pb::ListGroupsRequest {
                namespace: scene.namespace.name.clone(),
                ..pb::ListGroupsRequest::default()
            };
            let groups = writer.list(list).await?.groups;
            ensure!(groups.first().is_some_and(|group| is_up(group, 0)), "{groups:?}");
            Ok(())
        })
        .await?;
        let dir = scene.control_plane().dir().join("python");
        std::fs::create_dir_all(&dir)?;
        let file = |name: &str, text: &str| {
            let path = dir.join(name);
            std::fs::write(&path, text).map(|()| path)
        };
        let output = Command::new(python)
            // Python must not find the sources beside the script.
            .args(["-I", &format!("{CLIENT}/tests/real.py"), &platform.to_string()])
            .arg("--ca")
            .arg(file("ca.crt", &ca)?)
            .arg("--token")
            .arg(file("writer", writer.token())?)
            .arg("--reader")
            .arg(file("reader", reader.token())?)
            .args(["--namespace", &scene.namespace.name])
            .kill_on_drop(true)
            .output();
        let output = tokio::time::timeout(2 * PATIENCE, output).await??;
        let said = String::from_utf8_lossy(&output.stdout);
        ensure!(
            output.status.success() && said.trim() == "restarted 2 workers at generation 1",
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    })
    .await
}

/// The Python of an environment with the wheel and its dependencies.
async fn installed() -> Result<PathBuf> {
    let test = std::env::current_exe()?;
    let target = test
        .ancestors()
        .nth(3)
        .context("the test is not in a target directory")?;
    let folder = target.join("python");
    let installed = Command::new(Path::new(CLIENT).join("test"))
        .arg(&folder)
        .arg("install")
        .output()
        .await?;
    ensure!(
        installed.status.success(),
        "{}{}",
        String::from_utf8_lossy(&installed.stdout),
        String::from_utf8_lossy(&installed.stderr)
    );
    Ok(folder.join("clean/bin/python"))
}
