//! Pods that pose as agents, and workers that send garbage to their agent's socket as fast as they
//! can.

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::api::Api;
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, Worker};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::little;
use crate::intruder::{impostor, intruder};
use crate::tenant::attacker::{Attacker, JOBSET, POD};

/// The image with Python, in which the garbage is sent.
const PYTHON: &str = "localhost/python:3";
const GARBAGE: &str = include_str!("posers/garbage.py");
/// JobSets of workers that send garbage, and the workers of each.
const SETS: usize = 3;
const WORKERS: u32 = 4;
/// Impostors of each kind.
const IMPOSTORS: usize = 6;

/// Creates them, and lets them try until the phase is over.
pub(super) async fn posers(attacker: &Attacker) -> Result<()> {
    for _ in 0..SETS {
        let manifest = Manifest::new(WORKERS, IDLE)
            .named(&attacker.unique("garbage"))
            .max_restarts(i32::MAX as u32)
            .annotated("lockstep.dev/max-backoff", "0s")
            .container(json!({
                "image": PYTHON,
                "command": ["python3", "-c", GARBAGE],
                "resources": little(),
            }));
        attacker.create(JOBSET, manifest.0).await?;
    }
    // A short phase may be over before the victims run.
    match timeout(attacker.left(), victims(attacker)).await {
        Ok(Ok((pod, workers))) => pose(attacker, &pod, &workers).await?,
        Ok(Err(error)) => println!("     nobody poses: {error:#}"),
        Err(_) => println!("     nobody poses: there is no time"),
    }
    attacker.rest().await;
    Ok(())
}

/// Creates pods on each node that claim to be these workers.
async fn pose(attacker: &Attacker, pod: &Pod, workers: &[Worker]) -> Result<()> {
    for number in 0..IMPOSTORS {
        let posers = [impostor(pod, &workers[0])?, intruder(workers)?];
        for mut poser in posers {
            poser["metadata"]["name"] = json!(attacker.unique("poser"));
            spare(&mut poser);
            poser["spec"]["nodeName"] = json!(attacker.nodes[number % attacker.nodes.len()]);
            attacker.create(POD, poser).await?;
        }
    }
    Ok(())
}

/// The workers that the impostors claim to be, and the pod of one.
async fn victims(attacker: &Attacker) -> Result<(Pod, Vec<Worker>)> {
    let name = attacker.unique("victims");
    let manifest = Manifest::new(2, IDLE).named(&name);
    let group = Group::apply(&attacker.namespace, &manifest).await?;
    let workers = group.running(2).await?;
    let pods: Api<Pod> = Api::namespaced(attacker.namespace.access.client.clone(), &attacker.namespace.name);
    let first = workers.first().context("no worker")?;
    Ok((pods.get(&first.place.pod).await?, workers))
}

/// Limits what each container of a pod takes.
fn spare(pod: &mut Value) {
    let containers = pod["spec"]["containers"].as_array_mut();
    for container in containers.into_iter().flatten() {
        container["resources"] = little();
    }
}
