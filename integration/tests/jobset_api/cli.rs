//! `kubectl lockstep`, run as a user runs it: its output and its exit codes.

mod callers;
mod demo;
mod strangers;
mod terminal;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::eventually;
use lockstep_integration::host::free_addresses;
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::sync::OnceCell;

use crate::control_plane::build;
use crate::fixture::{Case, case};
use crate::platform::daemon::{Daemon, NODE};
use crate::platform::{played, with_the_node};
use crate::scene::{PATIENCE, Scene, jobset, replicated_job};
use callers::somebody_else_sees_what_they_may;
use demo::a_demo_that_cannot_end_well_leaves_nothing_behind;
use strangers::what_strangers_write_stays_in_its_place;
use terminal::a_terminal_shows_it_live_and_in_colours;

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_jobset_is_shown_restarted_and_its_history_told alone),
        case!(a_terminal_shows_it_live_and_in_colours alone),
        case!(check_finds_what_is_wrong_and_says_what_to_do),
        case!(nodes_are_shown_with_their_daemons),
        case!(mistakes_are_named),
        case!(somebody_else_sees_what_they_may),
        case!(what_strangers_write_stays_in_its_place),
        case!(a_demo_that_cannot_end_well_leaves_nothing_behind),
    ]
}

/// The result of a run.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        Self {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Fails unless the program ended with this code and printed all of these texts.
    fn says(&self, code: i32, texts: &[&str]) -> Result<()> {
        ensure!(self.code == Some(code), "not {code}: {self:#?}");
        for text in texts {
            ensure!(
                self.out.contains(text) || self.err.contains(text),
                "no {text:?}: {}\n{}",
                self.out,
                self.err
            );
        }
        Ok(())
    }
}

impl Ran {
    /// Its output as JSON, if it ended with this code.
    fn json(&self, code: i32) -> Result<Value> {
        self.says(code, &[])?;
        serde_json::from_str(&self.out).with_context(|| format!("{self:#?}"))
    }
}

/// Runs the program in the namespace of the scene.
async fn lockstep(scene: &Scene, args: &[&str]) -> Result<Ran> {
    let mut command = command(scene).await?;
    command.args(["--namespace", &scene.namespace.name]).args(args);
    Ok(Ran::of(command.output().await?))
}

/// The program with the kubeconfig of the scene.
async fn command(scene: &Scene) -> Result<Command> {
    static PROGRAM: OnceCell<PathBuf> = OnceCell::const_new();
    let program = PROGRAM
        .get_or_try_init(|| build("lockstep-cli", "kubectl-lockstep"))
        .await?;
    let mut command = Command::new(program);
    command
        .arg("--kubeconfig")
        .arg(&scene.namespace.access.kubeconfig)
        .env_remove("LOCKSTEP_NAMESPACE")
        .env_remove("LOCKSTEP_TOKEN")
        .stdin(Stdio::null());
    Ok(command)
}

async fn a_jobset_is_shown_restarted_and_its_history_told(scene: Scene) -> Result<()> {
    with_a_hub(&scene, async |hub, platform| {
        let ca = scene.hub_ca().await?;
        let (_, daemon) = played(&scene, hub, &ca).await?;
        Box::pin(by_the_api_server_alone(&scene, &daemon)).await?;
        Box::pin(by_the_platform_api(&scene, &platform.to_string())).await
    })
    .await
}

/// Runs `act` while the control plane serves a hub and the platform API at these addresses.
pub(crate) async fn with_a_hub(
    scene: &Scene,
    act: impl AsyncFnOnce(SocketAddr, SocketAddr) -> Result<()>,
) -> Result<()> {
    let [hub, platform] = free_addresses()?;
    let (hub_flag, platform_flag) = (hub.to_string(), platform.to_string());
    let flags = [
        "--hub-bind-address",
        &hub_flag,
        "--platform-bind-address",
        &platform_flag,
    ];
    let control_plane = scene.control_plane();
    control_plane.restart_with(&flags).await?;
    let result = with_the_node(scene, async || act(hub, platform).await).await;
    // Other cases expect a control plane without a hub.
    control_plane.stop().await?;
    result
}

async fn by_the_api_server_alone(scene: &Scene, daemon: &Daemon) -> Result<()> {
    let namespace = &scene.namespace.name;
    eventually("the JobSet is shown to run", PATIENCE, async || {
        let shown = lockstep(scene, &["status", "js", "--no-platform"]).await?;
        let head = format!("{namespace}/js  InSync  generation 0  restarts 0 of 5\n  never restarted\n");
        shown.says(
            0,
            &[
                &head,
                "└─ a  2 of 2 Jobs ready\n",
                "   ├─ js-a-0  Active  1 of 1 workers up\n",
            ],
        )
    })
    .await?;

    let asked = lockstep(scene, &["restart", "js", "--no-platform", "--wait"]).await?;
    asked.says(
        0,
        &[
            &format!("{namespace}/js: all workers run again at generation 1 in "),
            " ms\n",
        ],
    )?;

    daemon.exit(1, 3).await?;
    eventually("the failure is told", PATIENCE, async || {
        let told = lockstep(scene, &["history", "js"]).await?;
        told.says(
            0,
            &[
                "generation 2  restarts 1 of 5\n",
                "a restart was requested\n",
                "exited with code 3",
            ],
        )?;
        let told = lockstep(scene, &["history", "js", "--output", "json"]).await?;
        let told = told.json(0)?;
        let generations: Vec<&Value> = told["entries"]
            .as_array()
            .into_iter()
            .flatten()
            .map(|entry| &entry["generation"])
            .collect();
        ensure!(generations == [&json!(1), &json!(2)], "{told}");
        ensure!(told["entries"][1]["tookMs"].as_f64() > Some(0.0), "{told}");
        Ok(())
    })
    .await?;
    let told = lockstep(scene, &["timeline", "js"]).await?;
    told.says(
        0,
        &[
            "generation 2  took ",
            "  by Process  2 workers  ",
            "exited with code 3 (pod ",
            "\nrun ",
        ],
    )?;
    let page = lockstep(scene, &["timeline", "js", "--generation", "1", "--html", "-"]).await?;
    page.says(0, &["<!DOCTYPE html>", "a restart was requested", "<svg "])?;
    let unknown = lockstep(scene, &["timeline", "js", "--generation", "7"]).await?;
    unknown.says(1, &["--generation 7: no such restart of "])?;
    let shown = lockstep(scene, &["status", "--no-platform", "-o", "json"]).await?;
    let shown = shown.json(0)?;
    let last = &shown[0]["lastRestart"];
    ensure!(last["exitCode"] == 3 && last["level"] == "Process", "{shown}");
    ensure!(last["tookMs"].as_f64() > Some(0.0), "{shown}");
    Ok(())
}

async fn by_the_platform_api(scene: &Scene, server: &str) -> Result<()> {
    let namespace = &scene.namespace.name;
    // It uses the token of the kubeconfig.
    let shown = lockstep(scene, &["status", "js", "--server", server]).await?;
    shown.says(0, &["0/worker  Running  generation 2  for "])?;
    let shown = lockstep(scene, &["status", "js", "--server", server, "--token", "guessed"]).await?;
    shown.says(
        0,
        &[
            "note: worker states come from pods: the bearer token is not accepted",
            "js-a-0  Active",
        ],
    )?;

    let account = format!("--serviceaccount={namespace}:cli");
    for make in [
        &["create", "serviceaccount", "cli"][..],
        &[
            "create",
            "role",
            "cli",
            "--verb=list,watch,patch",
            "--resource=jobsets.jobset.x-k8s.io",
        ],
        &["create", "rolebinding", "cli", "--role=cli", &account],
    ] {
        scene.namespace.kubectl(make).await?;
    }
    let by_platform = ["--server", server, "--service-account", "cli"];
    let with = |args: &[&'static str]| [args, &by_platform[..]].concat();
    eventually("agents are heard of", PATIENCE, async || {
        let shown = lockstep(scene, &with(&["status", "js"])).await?;
        shown.says(
            0,
            &["InSync  generation 2", "0/worker  Running  generation 2  for "],
        )?;
        ensure!(shown.err.is_empty(), "{}", shown.err);
        Ok(())
    })
    .await?;
    let tried = lockstep(scene, &with(&["restart", "js", "--dry-run"])).await?;
    tried.says(
        0,
        &[
            &format!(
                "{namespace}/js: 2 of 2 workers would be restarted in place, by Process, at generation 3\n"
            ),
            "js-a-1[0]/worker  stopped   js-a-1-0-",
        ],
    )?;
    let asked = lockstep(scene, &with(&["restart", "js", "--wait", "-o", "json"])).await?;
    let asked = asked.json(0)?;
    ensure!(asked["by"] == "platform" && asked["generation"] == 3, "{asked}");
    ensure!(asked["tookMs"].as_f64() > Some(0.0), "{asked}");
    let told = lockstep(scene, &["history", "js", "--output", "wide"]).await?;
    told.says(0, &["DETECTED  STOPPED  WRITTEN  PARKED  RELEASED  RUNNING  WHY"])?;
    ensure!(told.out.lines().count() == 5, "{}", told.out);

    nodes_by_the_platform_api(scene, server).await?;
    for (command, said) in [
        ("resume", "is not suspended"),
        ("suspend", "suspended; its pods are deleted"),
        ("suspend", "is already suspended"),
        ("resume", "resumed"),
    ] {
        let done = lockstep(scene, &[command, "js"]).await?;
        done.says(0, &[&format!("{namespace}/js: {said}\n")])?;
    }
    Ok(())
}

/// It uses the token of the kubeconfig, which may list JobSets in all namespaces.
async fn nodes_by_the_platform_api(scene: &Scene, server: &str) -> Result<()> {
    let args = ["nodes", "--server", server];
    // The daemon reports this in its hello. Other cases use the same node; their workers go away
    // when they end.
    eventually("the node's workers are heard of", PATIENCE, async || {
        let shown = lockstep(scene, &args).await?;
        shown.says(0, &[])?;
        let row = shown.out.lines().find(|line| line.starts_with(NODE));
        let words: Vec<&str> = row.unwrap_or_default().split_whitespace().collect();
        let row = words.join(" ");
        ensure!(row.contains(" container well away for "), "{}", shown.out);
        ensure!(row.ends_with(" 2 of 2 reporting"), "{}", shown.out);
        Ok(())
    })
    .await?;
    let told = lockstep(scene, &[&args[..], &["-o", "json"]].concat()).await?;
    let told = told.json(0)?;
    let of_it = told
        .as_array()
        .into_iter()
        .flatten()
        .find(|row| row["node"] == NODE);
    let of_it = of_it.with_context(|| format!("{told}"))?;
    ensure!(
        of_it["level"] == "container" && of_it["connected"] == true,
        "{told}"
    );
    ensure!(of_it["criHealth"]["state"] == "well", "{told}");
    ensure!(of_it["nriHealth"]["detail"] == "no socket", "{told}");
    Ok(())
}

/// The namespace of the scene has an installation with a fault in each part.
async fn broken(scene: &Scene) -> Result<()> {
    let deployment = |name: &str, image: &str| {
        json!({
            "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
            "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "c", "image": image}]}}},
        })
    };
    let items = json!({"apiVersion": "v1", "kind": "List", "items": [
        deployment("lockstep-control-plane", "none"),
        deployment("jobset-controller-manager", "registry.k8s.io/jobset/jobset:v0.9.0"),
        {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "lockstep-control-plane"},
            "spec": {"holderIdentity": "gone", "leaseDurationSeconds": 15, "renewTime": "2020-01-01T00:00:00.000000Z"}},
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "lockstep-hub-ca"}, "data": {"ca.crt": "nothing"}},
    ]});
    scene
        .namespace
        .kubectl_with(&["apply", "--filename", "-"], &items.to_string())
        .await?;
    Ok(())
}

async fn check_finds_what_is_wrong_and_says_what_to_do(scene: Scene) -> Result<()> {
    broken(&scene).await?;
    let namespace = scene.namespace.name.clone();
    let of_it = ["check", "--system-namespace", &namespace, "--no-platform"];
    let found = lockstep(&scene, &of_it).await?;
    let upstream =
        format!("× another JobSet controller runs: Deployment {namespace}/jobset-controller-manager");
    let stop = format!("kubectl -n {namespace} scale deployment jobset-controller-manager --replicas 0");
    found.says(
        1,
        &[
            "✓ Kubernetes v1.",
            "✓ CRD jobsets.jobset.x-k8s.io is Lockstep's (0.",
            &format!("× Deployment {namespace}/lockstep-control-plane: 0 of 1 replicas ready"),
            "× gone led, but has not renewed its Lease for ",
            "× the CA of the hub and of the platform API: no certificate in PEM",
            &format!("× DaemonSet {namespace}/lockstep-node-daemon does not exist"),
            &upstream,
            &stop,
            "✓ KubeRay's controller does not run",
            "✓ you have all rights that the commands need",
        ],
    )?;
    ensure!(
        !found.out.contains('\x1b'),
        "colours without a terminal: {found:#?}"
    );

    let found = lockstep(&scene, &[&of_it[..], &["--output", "json"]].concat()).await?;
    let verdicts: Vec<Value> = serde_json::from_value(found.json(1)?)?;
    let broken = verdicts.iter().filter(|verdict| verdict["level"] == "error");
    ensure!(
        broken.clone().all(|verdict| verdict["hint"].is_string()),
        "{verdicts:#?}"
    );
    ensure!(broken.count() >= 5, "{verdicts:#?}");
    Ok(())
}

async fn nodes_are_shown_with_their_daemons(scene: Scene) -> Result<()> {
    let namespace = scene.namespace.name.clone();
    // All cases share the nodes.
    let (with, without) = (format!("{namespace}-a"), format!("{namespace}-b"));
    let node = |name: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}});
    let daemon = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "daemon", "labels": {
            "app.kubernetes.io/name": "lockstep", "app.kubernetes.io/component": "node-daemon"}},
        "spec": {"nodeName": with, "containers": [{"name": "node-daemon", "image": "r.example/lockstep-node-daemon:0.1.0"}]},
    });
    let items = json!({"apiVersion": "v1", "kind": "List", "items": [node(&with), node(&without), daemon]});
    let apply = ["apply", "--filename", "-"];
    scene.namespace.kubectl_with(&apply, &items.to_string()).await?;
    let shown = Box::pin(async {
        let node = json!({"status": {
            "conditions": [{"type": "Ready", "status": "True"}],
            "nodeInfo": {"containerRuntimeVersion": "containerd://2.3.7", "architecture": "", "bootID": "", "kernelVersion": "",
                "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""},
        }});
        let pod = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        for (object, status) in [(format!("node/{with}"), node), (String::from("pod/daemon"), pod)] {
            let status = status.to_string();
            let patch = ["patch", &object, "--subresource=status", "--type=merge", "--patch", &status];
            scene.namespace.kubectl(&patch).await?;
        }
        let shown = lockstep(&scene, &["nodes", "--system-namespace", &namespace, "--no-platform"]).await?;
        shown.says(0, &["lockstep-node-daemon:0.1.0  containerd://2.3.7  unknown  unknown  on by default  unknown"])?;
        let row = |node: &str| shown.out.lines().find(|line| line.starts_with(node)).map(str::to_owned);
        ensure!(row(&with).is_some_and(|row| row.contains("Running  yes ")), "{}", shown.out);
        ensure!(row(&without).is_some_and(|row| row.contains(" none ")), "{}", shown.out);
        Ok(())
    })
    .await;
    let delete = ["delete", "nodes", &with, &without, "--wait=false"];
    scene.namespace.kubectl(&delete).await?;
    shown
}

async fn mistakes_are_named(scene: Scene) -> Result<()> {
    let namespace = &scene.namespace.name;
    let missing = format!("error: JobSet {namespace}/nobody does not exist");
    for command in ["status", "history", "restart"] {
        let refused = lockstep(&scene, &[command, "nobody", "--no-platform"]).await?;
        refused.says(1, &[&missing])?;
        ensure!(refused.out.is_empty(), "{refused:#?}");
    }
    let mut recreated = jobset(json!({"replicatedJobs": [replicated_job("a", 1)]}));
    recreated["spec"]["suspend"] = json!(false);
    scene.create(recreated).await?;
    let refused = lockstep(&scene, &["restart", "js", "--no-platform"]).await?;
    refused.says(1, &["does not restart in place", "InPlaceRestart"])?;
    let refused = lockstep(&scene, &["restart", "js", "--dry-run", "--no-platform"]).await?;
    refused.says(1, &["does not restart in place"])?;
    lockstep(&scene, &["restart"]).await?.says(64, &["<JOBSET>"])?;
    let version = lockstep(&scene, &["--version"]).await?;
    version.says(0, &["lockstep 0."])?;
    let script = lockstep(&scene, &["completion", "bash"]).await?;
    script.says(0, &["complete -F _kubectl__lockstep "])
}
