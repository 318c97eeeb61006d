//! Gangs of pods with as many requests, tolerations and rules of placement as admission takes.

use anyhow::Result;
use lockstep_integration::harness::Manifest;
use lockstep_integration::harness::manifest::IDLE;
use serde_json::{Map, Value, json};

use crate::tenant::attacker::{Attacker, JOBSET};

/// JobSets, and the pods of each.
const SETS: usize = 40;
const PODS: u32 = 16;
/// Resources that no node has.
const RESOURCES: usize = 300;
const TOLERATIONS: usize = 500;
/// Terms of the affinity, and expressions of each.
const TERMS: usize = 100;
const EXPRESSIONS: usize = 10;

/// Gangs that never fit.
pub(super) async fn gang_pods(attacker: &Attacker) -> Result<()> {
    attacker
        .flood(JOBSET, SETS, |number| {
            let backend = if number % 4 == 0 { "Auto" } else { "Gates" };
            gang(backend).named(&attacker.unique("gang")).0
        })
        .await?;
    attacker.rest().await;
    Ok(())
}

fn gang(backend: &str) -> Manifest {
    let amounts: Map<String, Value> = (0..RESOURCES)
        .map(|number| {
            (
                format!("test.lockstep.dev/resource-{number}"),
                json!("1000000000001"),
            )
        })
        .collect();
    let tolerations: Vec<Value> = (0..TOLERATIONS)
        .map(|number| json!({"key": format!("test.lockstep.dev/taint-{number}"), "operator": "Exists"}))
        .collect();
    let expressions: Vec<Value> = (0..EXPRESSIONS)
        .map(|number| json!({"key": format!("test.lockstep.dev/{number}"), "operator": "NotIn", "values": ["a", "b"]}))
        .collect();
    let terms: Vec<Value> = vec![json!({"matchExpressions": expressions}); TERMS];
    let affinity = json!({"nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms},
    }});
    let mut manifest = Manifest::new(PODS, IDLE)
        .pod(json!({"tolerations": tolerations, "affinity": affinity}))
        .container(json!({"resources": {"limits": amounts, "requests": amounts}}));
    manifest.0["spec"]["gang"] = json!({
        "backend": backend,
        "scheduleTimeoutSeconds": 5,
        "replicatedJobs": [{"name": "w", "minAvailable": PODS / 2}],
    });
    manifest
}
