//! Workers that hang: no process ends, but the worker makes no progress. And what workers say of
//! their work.

use std::time::Duration;

use anyhow::{Result, ensure};
use lockstep_integration::harness::{Group, Manifest, eventually};
use lockstep_integration::image;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::demo::kubectl_lockstep;
use crate::support::{Case, Scene, case};

/// A worker that gives a heartbeat ten times a second. The loop is the worker itself, so that a
/// signal stops it.
pub(crate) const BEATING: &str = r#"while :; do touch "$LOCKSTEP_HEARTBEAT" || exit 3; sleep 0.1; done"#;

/// A worker that says how far it is among thousands of datagrams that make no sense.
const TALKING: &str = r#"
import itertools, os, socket, time
beat = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
tell = lambda data: beat.sendto(data, os.environ["LOCKSTEP_HEARTBEAT"])
first = 100000 * (1 + int(os.environ["LOCKSTEP_RESTART_ATTEMPT"]))
for step in itertools.count(first):
    for size in range(100, 3000, 100):
        tell(os.urandom(size))
        tell(b"SECTION=" + b"\x1b[2J\x07" * size)
        tell(b"STEP=%d\nSTEP=-1\nSTEP=\xff\nLATER=1" % (1 << 60))
    tell(b"ERROR=OSError: \x1b[31mno space")
    tell(b"STEP=%d\nSECTION=load \x1b[31m<b>red" % step)
    time.sleep(0.01)
"#;
/// How long a step may take to be shown.
const SHOWN: Duration = Duration::from_secs(60);

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(a_stopped_worker_restarts_its_group_in_place),
        case!(a_worker_that_does_not_come_up_restarts_its_group_until_no_restart_is_left),
        case!(what_workers_say_of_their_work_is_shown_however_much_they_say),
    ]
}

async fn a_stopped_worker_restarts_its_group_in_place(scene: Scene) -> Result<()> {
    // The worker is not root, and its root file system is read-only.
    let hardened = json!({"securityContext": {
        "runAsUser": 4321,
        "runAsNonRoot": true,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
    }});
    let manifest = Manifest::new(2, BEATING)
        .container(hardened)
        .annotated("lockstep.dev/heartbeat-timeout", "10s");
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    before[1].signal(Signal::SIGSTOP)?;
    let after = group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group
        .status_has("/inPlaceRestart/cause/reason", "HeartbeatMissed")
        .await?;
    let event = group.event("RestartedInPlace").await?;
    let message = event.message.unwrap_or_default();
    ensure!(
        message.contains("heartbeat-timeout") && message.contains(&before[1].place.pod),
        "{message}"
    );
    group
        .logged(&before[1].place.pod, "no heartbeat for 10s (generation 0)")
        .await?;
    ensure!(after.iter().all(|worker| worker.process.is_alive()));
    Ok(())
}

async fn a_worker_that_does_not_come_up_restarts_its_group_until_no_restart_is_left(
    scene: Scene,
) -> Result<()> {
    // At its second attempt the worker never gives a heartbeat.
    let script = format!(r#"[ "$LOCKSTEP_RESTART_ATTEMPT" = 0 ] || exec sleep 1000000; {BEATING}"#);
    let manifest = Manifest::new(2, &script)
        .max_restarts(2)
        .annotated("lockstep.dev/heartbeat-timeout", "60s")
        .annotated("lockstep.dev/ready-timeout", "10s");
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    before[0].signal(Signal::SIGKILL)?;
    group.status_has("/inPlaceRestart/restarts", 2).await?;
    group
        .status_has("/inPlaceRestart/cause/reason", "ReadyTimeout")
        .await?;
    group.status_has("/terminalState", "Failed").await?;
    Ok(())
}

async fn what_workers_say_of_their_work_is_shown_however_much_they_say(scene: Scene) -> Result<()> {
    scene.product.load(&image::python().await?).await?;
    let container = json!({
        "image": "localhost/python:3",
        "command": ["python3", "-c", TALKING],
        "env": [{"name": "LOCKSTEP_HEARTBEAT", "value": "socket"}],
    });
    let group = scene.apply(&Manifest::new(2, "").container(container)).await?;
    let before = group.running(2).await?;
    are_at_steps(&scene, &group, 100_000..200_000).await?;

    before[0].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    let error = "OSError: [31mno space";
    group.status_has("/inPlaceRestart/cause/error", error).await?;
    let message = group.event("RestartedInPlace").await?.message.unwrap_or_default();
    ensure!(
        message.contains(" after step 1") && message.contains(error),
        "{message}"
    );
    // A new attempt has said nothing yet, so none of it is left from the one before.
    are_at_steps(&scene, &group, 200_000..300_000).await
}

/// Waits until both workers are shown at such a step, and shown clean.
async fn are_at_steps(scene: &Scene, group: &Group, steps: std::ops::Range<u64>) -> Result<()> {
    let status = ["--namespace", &group.namespace.name, "status", &group.name];
    eventually(&format!("workers are at steps {steps:?}"), SHOWN, async || {
        let shown = kubectl_lockstep(scene, &[&status[..], &["--output", "json"]].concat()).await?;
        let shown: Value = serde_json::from_str(&shown)?;
        let workers = shown["replicatedJobs"][0]["jobs"][0]["workers"].as_array();
        let is_there = |worker: &&Value| {
            let step = worker["step"].as_u64().is_some_and(|step| steps.contains(&step));
            step && worker["section"].is_string()
        };
        ensure!(
            workers.into_iter().flatten().filter(is_there).count() == 2,
            "{shown}"
        );
        Ok(())
    })
    .await?;
    let text = kubectl_lockstep(scene, &status).await?;
    ensure!(text.contains(", in "), "{text}");
    ensure!(!text.contains(['\u{1b}', '\u{7}']), "{text:?}");
    Ok(())
}
