//! Workers whose next attempt begins from an interpreter that was started ahead.

use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::container_id;
use lockstep_integration::harness::manifest::CONTAINER;
use lockstep_integration::harness::process::{self, Process};
use lockstep_integration::harness::{Group, Manifest, eventually};
use lockstep_integration::image;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Case, Scene, case};

/// Says whether a module is there before it imports it, and gives heartbeats.
const PROGRAM: &str = r#"
import os, pathlib, sys, time
attempt = os.environ["LOCKSTEP_RESTART_ATTEMPT"]
ahead = "xml.dom.minidom" in sys.modules
import xml.dom.minidom, http.client
print("attempt", attempt, "ahead" if ahead else "cold", sys.argv, flush=True)
while True:
    pathlib.Path(os.environ["LOCKSTEP_HEARTBEAT"]).touch()
    time.sleep(0.1)
"#;

/// Parks itself, by the protocol that any language can speak, and then gives heartbeats.
const PARKS: &str = r#"
import os, pathlib, socket, sys, time
park = os.environ.pop("LOCKSTEP_PARK", None)
waited = False
if park:
    with socket.socket(fileno=int(park)) as agent:
        agent.send(b"ready")
        _, *changes = agent.recv(1 << 20).split(b"\0")
        for change in changes:
            name, _, value = change.partition(b"=")
            os.environb[name] = value
        waited = bool(changes)
        agent.send(b"started")
print("attempt", os.environ["LOCKSTEP_RESTART_ATTEMPT"], "ahead" if waited else "cold", sys.argv, flush=True)
while True:
    pathlib.Path(os.environ["LOCKSTEP_HEARTBEAT"]).touch()
    time.sleep(0.1)
"#;

/// What the agent logs when a standby has imported all.
const READY: &str = "a standby is ready";
/// How long pods and imports may take on a busy machine.
const WARM: Duration = Duration::from_secs(120);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_python_worker_restarts_from_its_standby),
        case!(python_in_a_script_restarts_from_its_standby),
        case!(a_program_that_parks_restarts_from_its_standby),
    ]
}

async fn a_python_worker_restarts_from_its_standby(scene: Scene) -> Result<()> {
    let command = json!(["python3", "-u", "-c", PROGRAM, "an argument"]);
    restarts_from_standbys(scene, "python", command).await
}

/// As Kubeflow's SDK starts programs.
async fn python_in_a_script_restarts_from_its_standby(scene: Scene) -> Result<()> {
    let script = r#"python3 -c "import json"; exec python3 -u -c "$0" "$1""#;
    let command = json!(["sh", "-c", script, PROGRAM, "an argument"]);
    restarts_from_standbys(scene, "python", command).await
}

async fn a_program_that_parks_restarts_from_its_standby(scene: Scene) -> Result<()> {
    let command = json!(["python3", "-u", "-c", PARKS, "an argument"]);
    restarts_from_standbys(scene, "program", command).await
}

async fn restarts_from_standbys(scene: Scene, kind: &str, command: Value) -> Result<()> {
    let in_script = command[0] == "sh";
    scene.product.load(&image::python().await?).await?;
    // The worker is not root, and its root file system is read-only.
    let container = json!({
        "image": "localhost/python:3",
        "command": command,
        "securityContext": {
            "runAsUser": 4321,
            "runAsNonRoot": true,
            "readOnlyRootFilesystem": true,
            "allowPrivilegeEscalation": false,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {"limits": {"memory": "256Mi"}},
    });
    let manifest = Manifest::new(2, "")
        .container(container)
        .annotated("lockstep.dev/heartbeat-timeout", "60s")
        .annotated("lockstep.dev/standby", kind);
    let group = scene.apply(&manifest).await?;
    let pods = names(&group, 2).await?;
    let said = |attempt: usize, how: &str| format!("attempt {attempt} {how} ['-c', 'an argument']");
    for pod in &pods {
        group.logged(pod, &said(0, "cold")).await?;
    }
    // The first attempt after a kill begins from the standby, and so does the next.
    for attempt in 1..=2 {
        for pod in &pods {
            eventually("a standby is ready", WARM, async || {
                let log = group.logs(pod).await?;
                ensure!(log.matches(READY).count() >= attempt, "the log is {log:?}");
                Ok(())
            })
            .await?;
        }
        let victim = worker(&group, &pods[0]).await?;
        victim.signal(Signal::SIGKILL)?;
        for pod in &pods {
            group.logged(pod, &said(attempt, "ahead")).await?;
        }
        group.status_has("/inPlaceRestart/restarts", attempt).await?;
        group.status_has("/inPlaceRestart/level", "Process").await?;
    }
    if !in_script {
        // What a script starts comes after the worker itself runs.
        let event = group.event("RestartedInPlace").await?;
        let note = event.message.unwrap_or_default();
        ensure!(note.contains("2 workers (2 from standbys) in place"), "{note}");
    }
    ensure!(names(&group, 2).await? == pods, "pods are new");
    Ok(())
}

/// The pods' names, once there are as many.
async fn names(group: &Group, count: usize) -> Result<Vec<String>> {
    eventually("the pods are there", WARM, async || {
        let pods = group.pods().await?;
        let names: Vec<String> = pods.into_iter().filter_map(|pod| pod.metadata.name).collect();
        ensure!(names.len() == count, "there are {names:?}");
        Ok(names)
    })
    .await
}

/// The worker's process in a pod: of the interpreters there, the one that is not a standby.
async fn worker(group: &Group, pod: &str) -> Result<Process> {
    let pods = group.pods().await?;
    let pod = pods
        .iter()
        .find(|found| found.metadata.name.as_deref() == Some(pod))
        .context("the pod is gone")?;
    let processes = process::in_container(&container_id(pod, CONTAINER)?);
    processes
        .into_iter()
        .find(|process| {
            let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", process.pid));
            let waits = score.is_ok_and(|score| score.trim() == "1000");
            !waits && process.args().first().is_some_and(|program| program == "python3")
        })
        .context("no worker runs")
}
