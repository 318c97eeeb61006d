//! Pod templates as users write them: the agent changes nothing that they ask for.

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::group::{START, container_id, container_status};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, Worker, eventually, process};
use nix::sys::signal::Signal;
use serde_json::json;

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(entrypoint_of_the_image_alone),
        case!(arguments_alone),
        case!(working_directory_of_the_container),
        case!(hardened_pod),
        case!(sidecar_runs_on),
        case!(second_container_runs_on_when_not_supervised),
    ]
}

/// An image that the set-up of the product imports. Its ENTRYPOINT is a worker that takes the words
/// of CMD or `args`, its WORKDIR is `/srv`, and its USER is 1234:5678.
const ENTRYPOINT_IMAGE: &str = "localhost/entrypoint:1";

/// Restarts a group of two once.
async fn restart_two(scene: &Scene, manifest: &Manifest) -> Result<(Group, Vec<Worker>)> {
    let group = scene.apply(manifest).await?;
    let before = group.running(2).await?;
    before[1].signal(Signal::SIGKILL)?;
    let after = group.restarted_in_place(&before, 1).await?;
    Ok((group, after))
}

async fn entrypoint_of_the_image_alone(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(2, "").container(json!({"image": ENTRYPOINT_IMAGE, "command": null}));
    let (group, after) = restart_two(&scene, &manifest).await?;
    for worker in after {
        let log = group.logged(&worker.place.pod, "attempt 1").await?;
        ensure!(log.contains("words: of the image"), "{log}");
        ensure!(
            worker.process.cwd().as_deref() == Some("/srv"),
            "{:?}",
            worker.process.cwd()
        );
        ensure!(
            worker
                .process
                .status("Uid")
                .first()
                .is_some_and(|uid| uid == "1234"),
            "not the image's USER"
        );
    }
    Ok(())
}

async fn arguments_alone(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(2, "")
        .container(json!({"image": ENTRYPOINT_IMAGE, "command": null, "args": ["of the", "container"]}));
    let (group, after) = restart_two(&scene, &manifest).await?;
    for worker in after {
        let log = group.logged(&worker.place.pod, "attempt 1").await?;
        ensure!(log.contains("words: of the container"), "{log}");
    }
    Ok(())
}

async fn working_directory_of_the_container(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(2, IDLE).container(json!({"workingDir": "/made/for/it"}));
    let (_, after) = restart_two(&scene, &manifest).await?;
    for worker in after {
        ensure!(
            worker.process.cwd().as_deref() == Some("/made/for/it"),
            "{:?}",
            worker.process.cwd()
        );
    }
    Ok(())
}

async fn hardened_pod(scene: Scene) -> Result<()> {
    let manifest = Manifest::new(2, IDLE).container(json!({"securityContext": {
        "runAsNonRoot": true,
        "runAsUser": 4321,
        "runAsGroup": 4321,
        "readOnlyRootFilesystem": true,
        "allowPrivilegeEscalation": false,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }}));
    let (_, after) = restart_two(&scene, &manifest).await?;
    for worker in after {
        for process in [worker.agent, worker.process] {
            ensure!(
                process.status("Uid").iter().all(|uid| uid == "4321"),
                "{:?}",
                process.status("Uid")
            );
            ensure!(
                process.status("CapBnd") == ["0000000000000000"],
                "{:?}",
                process.status("CapBnd")
            );
            ensure!(
                process.status("NoNewPrivs") == ["1"] && process.status("Seccomp") == ["2"],
                "confinement is lost"
            );
        }
    }
    Ok(())
}

async fn sidecar_runs_on(scene: Scene) -> Result<()> {
    let sidecar = json!({
        "name": "sidecar",
        "image": "localhost/busybox:1",
        "imagePullPolicy": "Never",
        "restartPolicy": "Always",
        "command": ["sh", "-c", "exec sleep 1000000"],
    });
    other_runs_on(
        &scene,
        &Manifest::new(2, IDLE).pod(json!({"initContainers": [sidecar]})),
        "sidecar",
    )
    .await
}

async fn second_container_runs_on_when_not_supervised(scene: Scene) -> Result<()> {
    let mut manifest = Manifest::new(2, IDLE).annotated("lockstep.dev/supervise", "worker");
    let containers = manifest
        .0
        .pointer_mut("/spec/replicatedJobs/0/template/spec/template/spec/containers");
    let containers = containers
        .and_then(|containers| containers.as_array_mut())
        .context("no containers")?;
    let mut other = containers[0].clone();
    other["name"] = json!("other");
    containers.push(other);
    other_runs_on(&scene, &manifest, "other").await
}

/// Checks that a restart does not touch the container `name`, and that it has no agent.
async fn other_runs_on(scene: &Scene, manifest: &Manifest, name: &str) -> Result<()> {
    let group = scene.apply(manifest).await?;
    let before = group.running(2).await?;
    let others = async || -> Result<_> {
        let mut others = Vec::new();
        for pod in group.pods().await? {
            let id = container_id(&pod, name)?;
            let init = process::init_of(&id).with_context(|| format!("{name} does not run"))?;
            let restarts = container_status(&pod, name).map(|status| status.restart_count);
            others.push((id, init, init.args(), restarts));
        }
        Ok(others)
    };
    let first = eventually(&format!("{name} runs without an agent"), START, async || {
        let others = others().await?;
        ensure!(
            others.iter().all(|(_, _, args, _)| args == &["sleep", "1000000"]),
            "{others:?}"
        );
        Ok(others)
    })
    .await?;
    before[1].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    let second = others().await?;
    ensure!(first == second, "{first:?} became {second:?}");
    Ok(())
}
