//! A node with eight workers is lost: no other worker is disturbed until the node is marked; then
//! the lost workers are replaced at once.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use lockstep_api::naming;
use lockstep_integration::cluster::node_name;
use lockstep_integration::harness::group::{Place, START};
use lockstep_integration::harness::manifest::IDLE;
use lockstep_integration::harness::{Group, Manifest, Worker, eventually};
use serde_json::{Value, json};

use crate::support::{Case, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    vec![case!(the_workers_of_a_lost_node_are_replaced_elsewhere)]
}

/// The number of workers on the lost node, and elsewhere.
const LOST: u32 = 8;
const OTHERS: u32 = 3;
/// The time from the end of a pod to its replacement, on a busy machine. The names show that the
/// replacement is not by the Job controller, which waits 10 s and ever longer.
const REPLACED: Duration = Duration::from_secs(30);

async fn the_workers_of_a_lost_node_are_replaced_elsewhere(scene: Scene) -> Result<()> {
    let node = scene.product.add_node().await?;
    let name = node_name(node);
    let group = scene.apply(&mostly_on(&name)).await?;
    let before = group.running((LOST + OTHERS) as usize).await?;
    let (lost, others): (Vec<_>, Vec<_>) = before.iter().partition(|worker| worker.place.node == name);
    ensure!(lost.len() == LOST as usize, "{before:#?}");
    group.status_has("/inPlaceRestart/phase", "InSync").await?;

    scene.product.lose_node(node).await?;
    let (reason, message) = group.condition("RestartBlocked", START).await?;
    ensure!(
        reason == "NodeLost" && message.contains(&name),
        "{reason}: {message}"
    );
    let (now, _) = group.workers().await?;
    ensure!(
        now.iter().eq(others.iter().copied()),
        "healthy workers were touched: {others:#?} became {now:#?}"
    );
    group.status_has("/inPlaceRestart/generation", 0).await?;

    let took = replaced(&group, &name, &lost).await?;
    ensure!(took <= REPLACED, "a pod was replaced after {took:.1?}");
    println!(
        "     {LOST} pods were each replaced within {:.1} s",
        took.as_secs_f64()
    );
    let after = group.at_generation(&before, 1, START).await?;
    for (before, after) in before.iter().zip(&after) {
        let (before, after) = (&before.place, &after.place);
        if before.node == name {
            ensure!(
                after.pod == next_name(before) && after.node != name,
                "{before:?} was replaced by {after:?}"
            );
        } else {
            ensure!(before == after, "{before:?} became {after:?}");
        }
    }
    group.status_has("/inPlaceRestart/restarts", 1).await?;
    group.status_has("/inPlaceRestart/phase", "InSync").await?;
    group.status_has("/restarts", 0).await?;
    let (now, _) = group.workers().await?;
    ensure!(
        now == after,
        "restarted more than once: {after:#?} became {now:#?}"
    );
    // Otherwise the next run on a kept cluster would wait for it.
    scene.namespace.kubectl(&["delete", "node", &name]).await?;
    Ok(())
}

/// Eight workers that prefer this node, and three that must avoid it.
fn mostly_on(node: &str) -> Manifest {
    let is = |operator: &str| json!({"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": operator, "values": [node]}]});
    let preferred = json!([{"weight": 100, "preference": is("In")}]);
    let mut manifest = Manifest::new(LOST, IDLE).pod(affinity(
        "preferredDuringSchedulingIgnoredDuringExecution",
        preferred,
    ));
    let required = json!({"nodeSelectorTerms": [is("NotIn")]});
    let other = Manifest::new(OTHERS, IDLE).pod(affinity(
        "requiredDuringSchedulingIgnoredDuringExecution",
        required,
    ));
    let mut other = other.0["spec"]["replicatedJobs"][0].clone();
    other["name"] = json!("x");
    if let Some(jobs) = manifest.0["spec"]["replicatedJobs"].as_array_mut() {
        jobs.push(other);
    }
    manifest
}

fn affinity(how: &str, what: Value) -> Value {
    json!({"affinity": {"nodeAffinity": {how: what}}})
}

/// Marks the node as out of service, so that Kubernetes ends its pods, which takes up to 20 s.
/// Returns the longest time from the end of a pod to its replacement.
async fn replaced(group: &Group, node: &str, lost: &[&Worker]) -> Result<Duration> {
    let out = [
        "taint",
        "node",
        node,
        "node.kubernetes.io/out-of-service=lost:NoExecute",
    ];
    group.namespace.kubectl(&out).await?;
    let mut ended: BTreeMap<&str, Instant> = BTreeMap::new();
    let mut took: BTreeMap<&str, Duration> = BTreeMap::new();
    eventually("all pods of the node are replaced", START, async || {
        let pods = group.pods().await?;
        let find = |name: &str| pods.iter().find(|pod| pod.metadata.name.as_deref() == Some(name));
        for place in lost.iter().map(|worker| &worker.place) {
            let phase = find(&place.pod).and_then(|pod| pod.status.as_ref()?.phase.as_deref());
            if matches!(phase, None | Some("Failed")) {
                ended.entry(&place.pod).or_insert_with(Instant::now);
            }
            if find(&next_name(place)).is_some() {
                let ended = ended.get(place.pod.as_str());
                let ended = ended.with_context(|| format!("{} has a pod beside it", place.pod))?;
                took.entry(&place.pod).or_insert_with(|| ended.elapsed());
            }
        }
        ensure!(took.len() == lost.len(), "{} of {} are", took.len(), lost.len());
        Ok(())
    })
    .await?;
    took.into_values().max().context("none was lost")
}

/// The name of the control plane's replacement for this pod, which belongs to the first
/// replicatedJob.
fn next_name(place: &Place) -> String {
    naming::replacement_pod_name("group-w-0", place.index, &place.uid)
}
