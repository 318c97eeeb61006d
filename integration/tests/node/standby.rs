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

/// Imports much, and uses as many MiB more as `/tmp/eat` says once there is such a file.
const EATER: &str = r#"
import os, pathlib, time
import asyncio, http.client, unittest.mock, xml.dom.minidom, email.mime.text, concurrent.futures, decimal, ctypes
print("attempt", os.environ["LOCKSTEP_RESTART_ATTEMPT"], flush=True)
kept, eat = [], pathlib.Path("/tmp/eat")
while True:
    pathlib.Path(os.environ["LOCKSTEP_HEARTBEAT"]).touch()
    time.sleep(0.1)
    if not kept and eat.exists():
        kept.append(b"x" * (int(eat.read_text()) << 20))
        print("has eaten", flush=True)
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
        case!(a_worker_that_needs_the_memory_outlives_its_standby),
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

/// The worker and its standby exceed the container's limit together, and neither does alone.
async fn a_worker_that_needs_the_memory_outlives_its_standby(scene: Scene) -> Result<()> {
    const LIMIT_MIB: u64 = 160;
    scene.product.load(&image::python().await?).await?;
    let limits = json!({"cpu": "500m", "memory": format!("{LIMIT_MIB}Mi")});
    let container = json!({
        "image": "localhost/python:3",
        "command": ["python3", "-u", "-c", EATER],
        "resources": {"limits": limits},
    });
    let manifest = Manifest::new(1, "")
        .container(container)
        .annotated("lockstep.dev/heartbeat-timeout", "60s")
        .annotated("lockstep.dev/standby", "python");
    let group = scene.apply(&manifest).await?;
    let pod = names(&group, 1).await?.remove(0);
    eventually("a standby is ready", WARM, async || {
        let log = group.logs(&pod).await?;
        ensure!(log.contains(READY), "the log is {log:?}");
        Ok(())
    })
    .await?;
    let before = worker(&group, &pod).await?;
    let processes = interpreters(&group, &pod).await?;
    let (standbys, others): (Vec<_>, Vec<_>) = processes.into_iter().partition(is_standby);
    ensure!(standbys.len() == 1, "there are {} standbys", standbys.len());
    let own = |all: &[Process]| all.iter().map(|one| anonymous_mib(*one)).sum::<Result<u64>>();
    // Half of the standby has room beside the worker.
    let eaten = LIMIT_MIB - own(&others)? - own(&standbys)? / 2;
    fs::write(format!("/proc/{}/root/tmp/eat", before.pid), eaten.to_string())?;
    group.logged(&pod, "has eaten").await?;
    eventually("the standby is gone", WARM, async || {
        ensure!(!standbys[0].is_alive(), "it lives");
        Ok(())
    })
    .await?;
    ensure!(before.is_alive(), "the worker has ended");
    ensure!(
        !group.logs(&pod).await?.contains("attempt 1"),
        "the worker was restarted"
    );
    // Its next attempt starts without one.
    before.signal(Signal::SIGKILL)?;
    group.logged(&pod, "attempt 1").await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/level", "Process").await
}

/// What a process has for itself, in MiB: memory that the kernel cannot drop.
fn anonymous_mib(process: Process) -> Result<u64> {
    let size = process.status("RssAnon");
    let kib: u64 = size.first().context("it has ended")?.parse()?;
    Ok(kib >> 10)
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
    let processes = interpreters(group, pod).await?;
    let found = processes.into_iter().find(|process| !is_standby(process));
    found.context("no worker runs")
}

/// The Python interpreters in a pod.
async fn interpreters(group: &Group, pod: &str) -> Result<Vec<Process>> {
    let pods = group.pods().await?;
    let pod = pods
        .iter()
        .find(|found| found.metadata.name.as_deref() == Some(pod))
        .context("the pod is gone")?;
    let processes = process::in_container(&container_id(pod, CONTAINER)?);
    let is_python = |process: &Process| process.args().first().is_some_and(|program| program == "python3");
    Ok(processes.into_iter().filter(is_python).collect())
}

/// True if the kernel ends this process before all others when memory is short.
fn is_standby(process: &Process) -> bool {
    let score = fs::read_to_string(format!("/proc/{}/oom_score_adj", process.pid));
    score.is_ok_and(|score| score.trim() == "1000")
}
