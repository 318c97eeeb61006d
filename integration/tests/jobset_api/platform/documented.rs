//! Every command of the documentation, run by `docs/commands.py` as a reader would: against a live
//! control plane, with a JobSet, a played node daemon, and the real kubectl, helm and grpcurl.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::eventually;
use lockstep_integration::host::free_addresses;
use lockstep_integration::progress::Progress;
use lockstep_integration::tools::Tools;
use lockstep_proto::platform::v1 as pb;
use serde_json::{Value, json};
use tokio::process::Command;

use super::caller::Caller;
use super::daemon::NODE;
use super::{grpcurl, play, with_the_node};
use crate::control_plane::build;
use crate::fixture::{Case, case};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/commands.py");

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(every_command_of_the_documentation_runs alone)]
}

/// The JobSet of the pages: a driver, and two workers with worker restarts.
fn group() -> Value {
    let job = |name: &str, width: i32| {
        let mut job = replicated_job(name, 1);
        let spec = &mut job["template"]["spec"];
        spec["parallelism"] = json!(width);
        spec["completions"] = json!(width);
        spec["completionMode"] = json!("Indexed");
        spec["template"]["spec"]["nodeName"] = json!(NODE);
        if let Some(spec) = spec.as_object_mut() {
            spec.remove("backoffLimit");
        }
        job
    };
    let mut servers = job("ps", 2);
    servers["template"]["metadata"] = json!({"annotations": {"lockstep.dev/restart-scope": "worker"}});
    jobset(json!({
        "failurePolicy": {"maxRestarts": 5, "restartStrategy": "InPlaceRestart"},
        "replicatedJobs": [job("a", 1), servers],
    }))
}

/// The programs of the commands. They are built first, as Kubernetes removes pods of an unknown
/// node after a minute.
async fn programs() -> Result<Vec<(&'static str, PathBuf)>> {
    let tools = Tools::locate(["helm", "kubectl"], &Progress::quiet()).await?;
    Ok(vec![
        ("HELM", tools.path("helm")?.to_owned()),
        ("KUBECTL", tools.path("kubectl")?.to_owned()),
        ("GRPCURL", grpcurl::program().await?),
        ("PLUGIN", build("lockstep-cli", "kubectl-lockstep").await?),
    ])
}

async fn every_command_of_the_documentation_runs(scene: Scene) -> Result<()> {
    let programs = programs().await?;
    with_the_node(&scene, async || on_the_node(&scene, &programs).await).await
}

async fn on_the_node(scene: &Scene, programs: &[(&'static str, PathBuf)]) -> Result<()> {
    let [hub, platform, page] = free_addresses()?;
    let dir = scene.control_plane().dir().join("documented");
    std::fs::create_dir_all(&dir)?;
    let (hub_flag, platform_flag, page_flag) = (hub.to_string(), platform.to_string(), page.to_string());
    let flags = [
        "--hub-bind-address",
        &hub_flag,
        "--platform-bind-address",
        &platform_flag,
        "--status-page-bind-address",
        &page_flag,
    ];
    let control_plane = scene.control_plane();
    control_plane.restart_with(&flags).await?;
    let result = Box::pin(async {
        let pem = scene.hub_ca().await?;
        let ca = dir.join("ca.crt");
        std::fs::write(&ca, &pem)?;
        let (_, _daemon) = play(scene, (group(), 3), hub, &pem).await?;
        let caller = Caller::new(scene, platform, &pem);
        let caller = caller.account("reader", &["list", "watch", "patch"]).await?;
        until_up(scene, &caller).await?;
        let metrics = scene.control_plane().metrics_address().to_string();
        let addresses = [
            ("PLATFORM", platform_flag.as_str()),
            ("PAGE", &page_flag),
            ("METRICS", &metrics),
            ("TOKEN", caller.token()),
        ];
        run(scene, programs, &addresses, &ca).await
    })
    .await;
    // Other cases expect a control plane without a hub.
    control_plane.stop().await?;
    result
}

async fn until_up(scene: &Scene, caller: &Caller) -> Result<()> {
    eventually("the group runs", PATIENCE, async || {
        let list = pb::ListGroupsRequest {
            namespace: scene.namespace.name.clone(),
            ..pb::ListGroupsRequest::default()
        };
        let groups = caller.list(list).await?.groups;
        let up = groups.first().map(|group| group.workers_up);
        ensure!(up == Some(3), "{groups:?}");
        Ok(())
    })
    .await
}

async fn run(
    scene: &Scene,
    programs: &[(&'static str, PathBuf)],
    addresses: &[(&str, &str)],
    ca: &Path,
) -> Result<()> {
    let output = Command::new("python3")
        .args([SCRIPT, "run"])
        .env("KUBECONFIG", &scene.namespace.access.kubeconfig)
        .env("NAMESPACE", &scene.namespace.name)
        .env("CA", ca)
        .envs(programs.iter().cloned())
        .envs(addresses.iter().copied())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .kill_on_drop(true)
        .output()
        .await
        .context("docs/commands.py")?;
    let said = String::from_utf8_lossy(&output.stdout);
    ensure!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    print!("{said}");
    Ok(())
}
