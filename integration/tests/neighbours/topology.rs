//! Kueue's topology-aware scheduling, whose scheduling gate stands beside that of a gang.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use lockstep_api::GangPhase;
use lockstep_integration::harness::eventually;
use serde_json::{Value, json};

use crate::fixture::{Case, case};
use crate::queue::{Queue, workers};
use crate::scene::{PATIENCE, Scene};

const HOSTNAME: &str = "kubernetes.io/hostname";
const REQUIRED: &str = "kueue.x-k8s.io/podset-required-topology";

pub(crate) fn cases() -> Vec<Case> {
    vec![
        case!(all_pods_are_on_the_node_that_kueue_has_chosen),
        case!(a_gang_behind_gates_starts_on_the_node_that_kueue_has_chosen),
        case!(a_gang_in_a_pod_group_starts_on_the_node_that_kueue_has_chosen),
    ]
}

/// A queue of two nodes, and a replicatedJob of three pods that have to be on the same.
async fn placed(scene: Scene) -> Result<(Queue, Value)> {
    let name = scene.namespace.name.clone();
    let queue = Queue::new(scene, 2, 8, json!({"topologyName": name})).await?;
    let levels = json!({"levels": [{"nodeLabel": HOSTNAME}]});
    queue.create_global("Topology", &name, levels).await?;
    let mut job = workers(3);
    job["template"]["spec"]["template"]["metadata"] = json!({"annotations": {REQUIRED: HOSTNAME}});
    Ok((queue, job))
}

/// Waits until all pods run, and checks that they are on one node.
async fn run_on_one_node(queue: &Queue) -> Result<()> {
    let pods = queue.until_running("js", 3).await?;
    let nodes: BTreeSet<_> = pods
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    ensure!(nodes.len() == 1, "{nodes:?}");
    Ok(())
}

async fn all_pods_are_on_the_node_that_kueue_has_chosen(scene: Scene) -> Result<()> {
    let (queue, job) = placed(scene).await?;
    queue
        .create("js", 0, None, json!({"replicatedJobs": [job]}))
        .await?;
    run_on_one_node(&queue).await?;
    queue.end("js", "Succeeded").await?;
    queue
        .until_condition("js", "Completed", "AllJobsCompleted")
        .await
        .map(drop)
}

/// Checks that a gang of this backend starts on one node.
async fn gang(scene: Scene, backend: &str) -> Result<()> {
    let (queue, job) = placed(scene).await?;
    let gang = json!({"backend": backend, "replicatedJobs": [{"name": "w", "minAvailable": 3}]});
    queue
        .create("js", 0, None, json!({"replicatedJobs": [job], "gang": gang}))
        .await?;
    run_on_one_node(&queue).await?;
    eventually("the gang is scheduled", PATIENCE, async || {
        let status = queue.status("js").await?;
        let phases: Vec<_> = status.gangs.iter().map(|gang| gang.phase.clone()).collect();
        ensure!(phases == [GangPhase::Scheduled], "{phases:?}");
        Ok(())
    })
    .await?;
    queue.end("js", "Succeeded").await?;
    queue
        .until_condition("js", "Completed", "AllJobsCompleted")
        .await
        .map(drop)
}

async fn a_gang_behind_gates_starts_on_the_node_that_kueue_has_chosen(scene: Scene) -> Result<()> {
    gang(scene, "Gates").await
}

async fn a_gang_in_a_pod_group_starts_on_the_node_that_kueue_has_chosen(scene: Scene) -> Result<()> {
    gang(scene, "PodGroup").await
}
