//! Pods that pose as agents: one has the sockets of all pods of its node, by a `hostPath` volume;
//! the other mounts a program of its own over the agent. The daemon believes neither. Only its log
//! and the metrics show them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, LogParams, PostParams};
use lockstep_integration::harness::group::Worker;
use lockstep_integration::harness::manifest::{CONTAINER, IDLE, IMAGE};
use lockstep_integration::harness::{Manifest, eventually};
use lockstep_integration::image;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::support::{Case, Part, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(who_opens_the_socket_of_another_pod_is_refused),
        case!(who_mounts_a_program_over_the_agent_gets_neither_agent_nor_socket),
    ]
}

/// The daemon's folder of sockets, as in the chart.
const SOCKETS: &str = "/run/lockstep/pods";
/// How long a pod may take to start and be refused many times, and the daemon to report that.
const PATIENCE: Duration = Duration::from_secs(180);
/// This many refusals are no coincidence. Both intruders try once a second.
const MANY: u64 = 20;

async fn who_opens_the_socket_of_another_pod_is_refused(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(2, IDLE)).await?;
    let before = group.running(2).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    let counted = refusals(&scene).await?;

    let pods: Api<Pod> = Api::namespaced(scene.access().client.clone(), &scene.namespace.name);
    let pod = serde_json::from_value(intruder(&before)?)?;
    let pod = pods.create(&PostParams::default(), &pod).await?;
    let own = pod.metadata.uid.context("no UID")?;
    let reasons = [
        format!("belongs to pod {own}, but the socket to another pod"),
        format!("is not in container {} of a pod", before[1].place.container),
    ];
    eventually(
        "the intruders are refused again and again",
        PATIENCE,
        async || {
            let now = refusals(&scene).await?;
            ensure!(now >= counted + MANY, "{counted} refusals have become {now}");
            Ok(())
        },
    )
    .await?;
    let log = scene.product.whole_log(Part::NodeDaemon(1)).await?;
    for (worker, reason) in before.iter().zip(reasons) {
        let about = |line: &&str| line.contains("agent refused") && line.contains(&worker.place.uid);
        let refused: Vec<&str> = log.lines().filter(about).collect();
        ensure!(refused.len() == 1, "not logged once: {refused:#?}");
        ensure!(refused[0].contains(&reason), "not {reason}: {}", refused[0]);
    }

    // Nothing else is disturbed: the workers' own agents still report and restart them while the
    // intruders keep trying.
    let now = group.running(2).await?;
    ensure!(now == before, "{before:#?} became {now:#?}");
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.status_has("/inPlaceRestart/generation", 0).await?;
    group.status_has("/inPlaceRestart/restarts", 0).await?;
    now[0].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/level", "Process").await?;
    let tried = refusals(&scene).await?;
    eventually("the intruders still try", PATIENCE, async || {
        let now = refusals(&scene).await?;
        ensure!(now > tried, "still {tried} refusals");
        Ok(())
    })
    .await
}

async fn who_mounts_a_program_over_the_agent_gets_neither_agent_nor_socket(scene: Scene) -> Result<()> {
    let group = scene.apply(&Manifest::new(2, IDLE)).await?;
    let before = group.running(2).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    let pods: Api<Pod> = Api::namespaced(scene.access().client.clone(), &scene.namespace.name);
    let worker = pods.get(&before[0].place.pod).await?;
    let pod = serde_json::from_value(impostor(&worker, &before[0])?)?;
    pods.create(&PostParams::default(), &pod).await?;
    eventually("the impostor runs as itself", PATIENCE, async || {
        let said = pods.logs("impostor", &LogParams::default()).await?;
        ensure!(said.contains("nobody is here"), "it says {said:?}");
        Ok(())
    })
    .await?;
    let log = scene.product.whole_log(Part::NodeDaemon(1)).await?;
    let about =
        |line: &&str| line.contains("the worker starts without an agent") && line.contains("impostor");
    let refused: Vec<&str> = log.lines().filter(about).collect();
    ensure!(refused.len() == 1, "not logged once: {refused:#?}");
    let why = "it mounts something of its own over, or below, /.lockstep";
    ensure!(refused[0].contains(why), "not why: {}", refused[0]);

    // The group whose UID it names has not changed, and restarts as usual.
    let now = group.running(2).await?;
    ensure!(now == before, "{before:#?} became {now:#?}");
    now[0].signal(Signal::SIGKILL)?;
    group.restarted_in_place(&before, 1).await?;
    group.status_has("/inPlaceRestart/level", "Process").await?;

    // A JobSet with such a mount gets an event that says why it restarts otherwise.
    let own = json!({"volumeMounts": [{"name": "own", "mountPath": "/.lockstep/bin"}]});
    let manifest = Manifest::new(1, IDLE)
        .named("own")
        .pod(json!({"volumes": [{"name": "own", "emptyDir": {}}]}))
        .container(own);
    let own = scene.apply(&manifest).await?;
    own.status_has("/inPlaceRestart/kind", "Plain").await
}

/// A pod with the labels and annotations of a worker that mounts a program of its own over the
/// agent.
pub(crate) fn impostor(worker: &Pod, at: &Worker) -> Result<Value> {
    let labels = worker.metadata.labels.as_ref().context("no labels")?;
    let kept = [
        "jobset.sigs.k8s.io/jobset-uid",
        "batch.kubernetes.io/job-completion-index",
    ];
    let identity = kept.map(|key| (key.to_owned(), labels.get(key).cloned().unwrap_or_default()));
    let mut annotations = serde_json::Map::from_iter(identity.map(|(key, value)| (key, json!(value))));
    // These are annotations, as by labels the Job controller would adopt the pod.
    annotations.insert(
        "batch.kubernetes.io/job-name".to_owned(),
        json!(labels.get("batch.kubernetes.io/job-name")),
    );
    annotations.insert("lockstep.dev/in-place".to_owned(), json!("supervised"));
    annotations.insert("lockstep.dev/supervise".to_owned(), json!(CONTAINER));
    let forge = "printf '#!/bin/sh\\nexec sleep 1000000\\n' > /program/agent && chmod 755 /program/agent";
    let script = "test -e /.lockstep/run/agent.sock || echo 'nobody is here'; exec sleep 1000000";
    let container = |name: &str, script: &str, mount: Value| {
        json!({
            "name": name,
            "image": IMAGE,
            "imagePullPolicy": "Never",
            "command": ["sh", "-c", script],
            "volumeMounts": [mount],
        })
    };
    let over = json!({
        "name": "program",
        "mountPath": "/.lockstep/bin/lockstep-pod-agent",
        "subPath": "agent",
        "readOnly": true,
    });
    Ok(json!({
        "metadata": {"name": "impostor", "annotations": annotations},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "nodeName": at.place.node,
            "initContainers": [container("forge", forge, json!({"name": "program", "mountPath": "/program"}))],
            "containers": [container(CONTAINER, script, over)],
            "volumes": [{"name": "program", "emptyDir": {}}],
        },
    }))
}

/// The number of refused agents that the control plane knows of.
async fn refusals(scene: &Scene) -> Result<u64> {
    let metrics = scene.product.metrics().await?;
    let count = metrics
        .lines()
        .find_map(|line| line.strip_prefix("lockstep_agent_refusals_total "));
    Ok(count.context("no such metric")?.parse()?)
}

/// Two of the product's own agents, each PID 1 of its container. One reports itself at the socket
/// of the first worker's pod. The other claims at the second worker's socket to be the agent there.
pub(crate) fn intruder(workers: &[Worker]) -> Result<Value> {
    let image = image::node_daemon(&image::Programs::chosen()?)?.name;
    let agent = |name: &str, worker: &Worker, claim: &[&str]| {
        let socket = format!("--socket=/pods/{}/agent.sock", worker.place.uid);
        let mut args = vec![socket.as_str(), "--container", CONTAINER];
        args.extend(claim);
        args.extend(["--", "/nothing"]);
        json!({
            "name": name,
            "image": image,
            "imagePullPolicy": "Never",
            "command": ["/lockstep-pod-agent"],
            "args": args,
            "volumeMounts": [{"name": "pods", "mountPath": "/pods"}],
        })
    };
    let theirs = &workers[1].place.container;
    Ok(json!({
        "metadata": {"name": "intruder"},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "nodeName": workers[0].place.node,
            "containers": [
                agent("itself", &workers[0], &[]),
                agent("namesake", &workers[1], &["--container-id", theirs]),
            ],
            "volumes": [{"name": "pods", "hostPath": {"path": SOCKETS, "type": "Directory"}}],
        },
    }))
}
