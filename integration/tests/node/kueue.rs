//! Kueue admits a JobSet, whose restarts in place are none of its business.

use anyhow::{Context, Result, ensure};
use lockstep_integration::cluster::Neighbour;
use lockstep_integration::harness::group::START;
use lockstep_integration::harness::{Group, eventually};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::support::{Case, Scene, case};

/// The last of all cases on the node: Kueue stays until the cluster goes.
pub(crate) fn cases() -> Vec<Case> {
    vec![case!(a_queued_jobset_restarts_in_place_and_keeps_its_admission alone)]
}

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/kueue");

async fn apply(scene: &Scene, file: &str) -> Result<()> {
    let path = format!("{EXAMPLES}/{file}");
    // Kueue's other webhooks may be served a moment later than the first.
    eventually(&format!("{file} is applied"), START, async || {
        scene.namespace.kubectl(&["apply", "--filename", &path]).await
    })
    .await
    .map(drop)
}

/// The only Workload.
async fn workload(scene: &Scene) -> Result<Value> {
    let list = scene
        .namespace
        .kubectl(&["get", "workloads.kueue.x-k8s.io", "--output=json"])
        .await?;
    let mut list: Value = serde_json::from_str(&list)?;
    let items = list["items"].as_array_mut().context("no list")?;
    ensure!(items.len() == 1, "{} Workloads", items.len());
    Ok(items.remove(0))
}

fn has(workload: &Value, condition: &str) -> bool {
    let conditions = workload.pointer("/status/conditions").and_then(Value::as_array);
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one["type"] == *condition && one["status"] == "True")
}

async fn a_queued_jobset_restarts_in_place_and_keeps_its_admission(scene: Scene) -> Result<()> {
    scene.product.add(Neighbour::Kueue).await?;
    apply(&scene, "queue.yaml").await?;
    apply(&scene, "jobset.yaml").await?;
    let group = Group {
        namespace: scene.namespace.clone(),
        name: "queued".to_owned(),
    };
    let mut workers = group.running(3).await?;
    let admitted = eventually("Kueue sees the pods as ready", START, async || {
        let found = workload(&scene).await?;
        ensure!(
            has(&found, "Admitted") && has(&found, "PodsReady"),
            "{}",
            found["status"]
        );
        Ok(found)
    })
    .await?;
    for generation in 1..=3 {
        workers[generation as usize - 1].signal(Signal::SIGKILL)?;
        workers = group.restarted_in_place(&workers, generation).await?;
        group.status_has("/inPlaceRestart/phase", "InSync").await?;
    }
    group.status_has("/inPlaceRestart/restarts", 3).await?;
    let after = workload(&scene).await?;
    ensure!(
        after["metadata"]["uid"] == admitted["metadata"]["uid"],
        "another Workload"
    );
    ensure!(
        after["status"]["admission"] == admitted["status"]["admission"],
        "{after}"
    );
    ensure!(
        has(&after, "Admitted") && !has(&after, "Evicted"),
        "{}",
        after["status"]
    );
    ensure!(group.events("Suspended").await?.is_empty(), "it was suspended");
    // Deleted, it gives its quota back, and Kueue lets its Workload go.
    let deleted = ["delete", "--filename", EXAMPLES, "--timeout=60s"];
    scene.namespace.kubectl(&deleted).await.map(drop)
}
