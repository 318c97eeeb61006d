//! What fails again and again under names that are as long as allowed, with messages and values to
//! match: it fills the logs and events of what reports it.

use std::time::Duration;

use anyhow::Result;
use lockstep_integration::harness::Manifest;
use lockstep_integration::harness::manifest::IDLE;
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval};

use super::{little, nowhere};
use crate::tenant::attacker::{Attacker, JOBSET, POD};

/// JobSets of each kind.
const SETS: usize = 6;
/// Pods that pose as theirs.
const PODS: usize = 200;
/// Every JobSet is changed this often.
const PACE: Duration = Duration::from_millis(250);
/// The longest message of a container, and the longest name of an object.
const MESSAGE: usize = 4096;
const NAME: usize = 253;
/// A JobSet's name that leaves room for those of its pods.
const SET: usize = 44;

/// Fails, restarts and changes them all the time.
pub(super) async fn log_flood(attacker: &Attacker) -> Result<()> {
    let mut asked = Vec::new();
    for number in 0..SETS {
        let all = [
            failing(),
            refused_pods(number),
            ended(),
            odd_annotations(),
            restarted(),
        ];
        for (kind, manifest) in all.into_iter().enumerate() {
            let name = long(&attacker.unique("loud"), SET);
            if kind >= 3 {
                asked.push(name.clone());
            }
            attacker.create(JOBSET, manifest.named(&name).0).await?;
        }
    }
    attacker
        .flood(POD, PODS, |_| pod(&long(&attacker.unique("loud"), NAME)))
        .await?;
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for turn in 0.. {
        pace.tick().await;
        if !attacker.goes_on() {
            break;
        }
        let name = &asked[turn % asked.len()];
        let request = long(&format!("{turn}"), 1024);
        let worker = format!("worker/{name}-w-0/{turn} {}", long("x", 900));
        let patch = json!({"metadata": {"annotations": {
            "lockstep.dev/restart-request": request,
            "lockstep.dev/restart-workers": worker,
        }}});
        attacker.patch(JOBSET, name, patch).await;
    }
    Ok(())
}

/// The text, with letters behind it up to this length.
fn long(text: &str, length: usize) -> String {
    let more = length.saturating_sub(text.len());
    format!("{text}{}", "x".repeat(more))
}

/// Workers that fail at once, with a long message, and are not held back for long.
fn failing() -> Manifest {
    let script = format!("head -c {MESSAGE} /dev/zero | tr '\\0' m > /dev/termination-log; exit 1");
    in_place(Manifest::new(4, &script))
}

/// The same, which the container's own restarts are for.
fn ended() -> Manifest {
    let script = format!("head -c {MESSAGE} /dev/zero | tr '\\0' m > /dev/termination-log; sleep 1; exit 1");
    in_place(Manifest::new(2, &script)).annotated("lockstep.dev/supervise", "none")
}

/// More containers than a pod may have, once defaults are filled in.
fn refused_pods(number: usize) -> Manifest {
    let containers: Vec<Value> = (0..2800)
        .map(|container| json!({"name": format!("c{number}-{container}"), "image": "none"}))
        .collect();
    Manifest::new(1, IDLE).pod(json!({"containers": containers}))
}

/// Annotations that are misspelt, or make no sense, at great length.
fn odd_annotations() -> Manifest {
    let mut manifest = in_place(Manifest::new(2, IDLE)).pod(nowhere());
    for number in 0..100 {
        let key = format!("lockstep.dev/{}", long(&format!("misspelt-{number}"), 60));
        manifest = manifest.annotated(&key, &long("v", 1000));
    }
    manifest
}

/// Workers that run, and are restarted on request.
fn restarted() -> Manifest {
    in_place(Manifest::new(2, IDLE))
}

fn in_place(manifest: Manifest) -> Manifest {
    manifest
        .max_restarts(i32::MAX as u32)
        .annotated("lockstep.dev/max-backoff", "0s")
        .annotated("alpha.jobset.sigs.k8s.io/inplace-timeout", "2s")
        .container(json!({"resources": little()}))
}

/// A pod that claims to belong to a JobSet, with long values.
fn pod(name: &str) -> Value {
    let mut spec = nowhere();
    spec["containers"] = json!([{"name": long("c", 63), "image": long("none/", 250)}]);
    json!({
        "metadata": {
            "name": name,
            "labels": {
                "jobset.sigs.k8s.io/jobset-name": long("s", 63),
                "jobset.sigs.k8s.io/jobset-uid": long("u", 63),
                "jobset.sigs.k8s.io/replicatedjob-name": long("r", 63),
                "jobset.sigs.k8s.io/job-index": long("1", 63),
            },
        },
        "spec": spec,
    })
}
