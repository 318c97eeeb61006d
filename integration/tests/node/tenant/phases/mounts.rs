//! Pods with hundreds of mounts, and objects that come and go.

use anyhow::Result;
use lockstep_integration::harness::Manifest;
use lockstep_integration::harness::manifest::{IDLE, IMAGE};
use serde_json::{Value, json};

use super::{little, nowhere, replicas, suspended};
use crate::tenant::attacker::{Answer, Attacker, JOBSET, POD};

/// Pods that run at once, the containers of each, and the mounts of each container.
const PODS: usize = 16;
const CONTAINERS: usize = 3;
const MOUNTS: usize = 400;
/// Objects that exist at once while they come and go.
const FEW: usize = 10;

/// Pods with many mounts. When all run, they are deleted and come again.
pub(super) async fn mounts(attacker: &Attacker) -> Result<()> {
    let manifest = Manifest::new(4, IDLE)
        .named(&attacker.unique("mounts"))
        .pod(json!({"volumes": volumes()}))
        .container(json!({"volumeMounts": places(0), "resources": little()}));
    attacker.create(JOBSET, manifest.0).await?;
    let nodes = attacker.nodes.clone();
    let mut running: Vec<String> = Vec::new();
    while attacker.goes_on() {
        let name = attacker.unique("mounts");
        let node = &nodes[running.len() % nodes.len()];
        if attacker.create(POD, mounting(&name, node)).await? == Answer::Taken {
            running.push(name);
        }
        if running.len() >= PODS {
            let first = running.remove(0);
            settle(attacker, &running).await;
            attacker.delete(POD, &first).await;
        }
    }
    Ok(())
}

/// Waits until the latest pod is no longer pending: otherwise kubelets never get to start any.
async fn settle(attacker: &Attacker, running: &[String]) {
    let Some(last) = running.last() else { return };
    let mut pace = tokio::time::interval(std::time::Duration::from_millis(500));
    for _ in 0..60 {
        pace.tick().await;
        let Some(found) = attacker.get(POD, last).await else {
            return;
        };
        if found["status"]["phase"] != "Pending" {
            return;
        }
    }
}

/// Creates pods and JobSets, and deletes each a moment later.
pub(super) async fn purges(attacker: &Attacker) -> Result<()> {
    let nodes = attacker.nodes.clone();
    let mut there = Vec::new();
    let mut turn = 0;
    while attacker.goes_on() {
        turn += 1;
        let name = attacker.unique("purged");
        let (kind, manifest) = match turn % 5 {
            0 => (POD, mounting(&name, &nodes[turn % nodes.len()])),
            1 => (POD, gated(&name)),
            2 => (
                JOBSET,
                Manifest::new(2, IDLE)
                    .named(&name)
                    .container(json!({"resources": little()}))
                    .0,
            ),
            3 => (
                JOBSET,
                suspended(replicas(Manifest::new(1, IDLE), 100)).named(&name).0,
            ),
            _ => (
                JOBSET,
                replicas(Manifest::new(5, IDLE).pod(nowhere()), 20).named(&name).0,
            ),
        };
        attacker.create(kind, manifest).await?;
        there.push((kind, name));
        if there.len() > FEW {
            let (kind, name) = there.remove(0);
            attacker.delete(kind, &name).await;
        }
    }
    Ok(())
}

fn volumes() -> Value {
    json!([{"name": "v", "emptyDir": {}}])
}

/// Mounts of one volume at many places.
fn places(container: usize) -> Vec<Value> {
    (0..MOUNTS)
        .map(|number| json!({"name": "v", "mountPath": format!("/mounts/{container}/{number}")}))
        .collect()
}

/// A pod on a node whose containers have many mounts.
fn mounting(name: &str, node: &str) -> Value {
    let containers: Vec<Value> = (0..CONTAINERS)
        .map(|number| {
            json!({
                "name": format!("c{number}"),
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sleep", "1000000"],
                "volumeMounts": places(number),
                "resources": little(),
            })
        })
        .collect();
    let spec = json!({
        "nodeName": node,
        "terminationGracePeriodSeconds": 1,
        "containers": containers,
        "volumes": volumes(),
    });
    json!({"metadata": {"name": name, "labels": {"jobset.sigs.k8s.io/jobset-name": "purged"}}, "spec": spec})
}

/// A pod behind a gate.
fn gated(name: &str) -> Value {
    let spec = json!({
        "schedulingGates": [{"name": "lockstep.dev/gang"}],
        "containers": [{"name": "c", "image": IMAGE}],
    });
    json!({"metadata": {"name": name, "labels": {"jobset.sigs.k8s.io/jobset-name": "purged"}}, "spec": spec})
}
