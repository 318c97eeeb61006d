//! A user debugs a worker from a container beside it, in its PID namespace.

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::RESTART;
use lockstep_integration::harness::manifest::{CONTAINER, IDLE, IMAGE};
use lockstep_integration::harness::{Manifest, eventually, process};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(what_a_debugger_as_root_left_behind_blocks_no_restart),
        case!(what_a_debugger_of_the_same_user_left_behind_lives_on),
    ]
}

async fn what_a_debugger_as_root_left_behind_blocks_no_restart(scene: Scene) -> Result<()> {
    left_behind(scene, json!({"runAsUser": 1000}), "5555001").await
}

async fn what_a_debugger_of_the_same_user_left_behind_lives_on(scene: Scene) -> Result<()> {
    left_behind(scene, json!({}), "5555002").await
}

/// A debugger leaves a process with this argument to the agent of a worker with this security
/// context. Then the other worker dies.
async fn left_behind(scene: Scene, security: serde_json::Value, argument: &str) -> Result<()> {
    let manifest = Manifest::new(2, IDLE).container(json!({"securityContext": security}));
    let group = scene.apply(&manifest).await?;
    let before = group.running(2).await?;
    let script = format!("(setsid sleep {argument} &); while :; do sleep 1; done");
    scene
        .namespace
        .kubectl(&[
            "debug",
            &before[0].place.pod,
            &format!("--image={IMAGE}"),
            "--image-pull-policy=Never",
            &format!("--target={CONTAINER}"),
            "--profile=general",
            "--container=debugger",
            "--",
            "sh",
            "-c",
            &script,
        ])
        .await?;
    let left = eventually("the debugger has left a process behind", RESTART, async || {
        let found = process::running(&["sleep", argument]);
        let pids: Vec<_> = found.iter().map(|left| left.status("PPid")).collect();
        let agent = before[0].agent.pid.to_string();
        let adopted = found
            .into_iter()
            .find(|left| left.status("PPid").first() == Some(&agent));
        adopted.with_context(|| format!("children of {pids:?}, not of {agent}"))
    })
    .await?;

    before[1].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    ensure!(left.is_alive(), "the debugger's process was killed");
    group.status_has("/inPlaceRestart/level", "Process").await?;
    group.status_has("/restarts", 0).await
}
