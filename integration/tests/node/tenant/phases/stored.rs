//! Pods that fill the namespace's share of the caches, and pods on nodes with as many annotations
//! as an object can have.

use anyhow::Result;
use lockstep_integration::harness::manifest::IMAGE;
use serde_json::{Map, Value, json};

use super::{little, nowhere};
use crate::tenant::attacker::{Attacker, POD};

/// The length of an annotation that fills what an object's annotations may take.
const LONG: usize = 250_000;
/// Pods with one such annotation, whose text alone is as much as the share of 64 MiB, or the room
/// for the 100,000 usual pods of the largest JobSet.
const OF_ONE: usize = 560;
/// Annotations of three letters, and pods of these: what is kept of each annotation takes some 100
/// bytes more than its text.
const SHORT: usize = 20_000;
const OF_MANY: usize = 80;
/// One more than half of what a table of 65,536 places for seven eighths takes.
const MOST: usize = 57_345;
/// Pods that run.
const RUNNING: usize = 16;
/// A node that does not exist.
const NO_NODE: &str = "nowhere";

/// Creates all of them, and leaves them there.
pub(super) async fn big_pods(attacker: &Attacker) -> Result<()> {
    let nodes = attacker.nodes.clone();
    attacker
        .flood(POD, RUNNING, |number| {
            let node = &nodes[number % nodes.len()];
            let container = json!({
                "name": "c",
                "image": IMAGE,
                "imagePullPolicy": "Never",
                "command": ["sleep", "1000000"],
                "resources": little(),
            });
            let spec =
                json!({"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]});
            pod(attacker, short(MOST), spec)
        })
        .await?;
    attacker
        .flood(POD, OF_MANY, |number| pod(attacker, short(SHORT), apart(number)))
        .await?;
    attacker
        .flood(POD, OF_ONE, |number| {
            let one = Map::from_iter([("long".to_owned(), json!("x".repeat(LONG)))]);
            pod(attacker, one, apart(number))
        })
        .await?;
    attacker.rest().await;
    Ok(())
}

/// The spec of a pod that no kubelet sees: behind a gate, without a node, or on one that does not
/// exist.
fn apart(number: usize) -> Value {
    let mut spec = match number % 3 {
        0 => json!({"schedulingGates": [{"name": "test.lockstep.dev/never"}]}),
        1 => json!({"nodeName": NO_NODE}),
        _ => nowhere(),
    };
    spec["containers"] = json!([{"name": "c", "image": "none"}]);
    spec
}

/// This many annotations whose names have three letters.
fn short(count: usize) -> Map<String, Value> {
    const LETTERS: &[u8] = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
    let letter = |number: usize| char::from(LETTERS[number % LETTERS.len()]);
    let base = LETTERS.len();
    let name = |number: usize| String::from_iter([number / base / base, number / base, number].map(letter));
    (0..count).map(|number| (name(number), json!(""))).collect()
}

/// A pod that claims to belong to a JobSet.
fn pod(attacker: &Attacker, annotations: Map<String, Value>, spec: Value) -> Value {
    json!({
        "metadata": {
            "name": attacker.unique("stored"),
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": "stored",
                "jobset.sigs.k8s.io/replicatedjob-name": "w",
            },
            "annotations": annotations,
        },
        "spec": spec,
    })
}
