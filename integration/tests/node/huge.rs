//! Objects of a tenant that take many times their text once they are read, all at once: the control plane stays within its memory, and others are served.

use std::time::Duration;

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use lockstep_integration::harness::{Manifest, Namespace, eventually};
use serde_json::{Value, json};

use crate::support::{Case, Part, Scene, case};

pub(crate) fn cases() -> Vec<Case> {
    let mut cases = vec![case!(huge_objects_of_all_kinds_fit_into_memory_together)];
    for case in &mut cases {
        case.limit = Duration::from_secs(300);
    }
    cases
}

/// A quarter of what the chart gives.
const MEMORY: [&str; 2] = ["ray.enabled=true", "controller.resources.limits.memory=256Mi"];
/// Of each kind. A JobSet and what is made of it has as many objects as are admitted.
const JOBSETS: usize = 8;
const CLUSTERS: usize = 4;
const VOLUMES: usize = 3_900;
const ROUNDS: usize = 3;
const PATIENCE: Duration = Duration::from_secs(120);

/// A pod that is scheduled nowhere.
fn pod(volumes: usize) -> Value {
    let volumes: Vec<Value> = (0..volumes)
        .map(|index| json!({"name": format!("v{index}")}))
        .collect();
    json!({"spec": {
        "nodeSelector": {"no": "such"},
        "terminationGracePeriodSeconds": 0,
        "containers": [{"name": "c", "image": "localhost/busybox:1", "command": ["sleep", "infinity"]}],
        "volumes": volumes,
    }})
}

fn jobset(name: &str) -> Value {
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": name},
        "spec": {"replicatedJobs": [{"name": "w", "template": {"spec": {"template": pod(VOLUMES)}}}]},
    })
}

fn cluster(name: &str) -> Value {
    let group = |volumes| json!({"rayStartParams": {}, "template": pod(volumes)});
    let mut workers = group(VOLUMES);
    workers["groupName"] = json!("g");
    workers["replicas"] = json!(1);
    json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name},
        "spec": {"headGroupSpec": group(0), "workerGroupSpecs": [workers]},
    })
}

async fn create(namespace: &Namespace, manifest: Value) -> Result<()> {
    let manifest = manifest.to_string();
    let created = namespace.kubectl_with(&["create", "--filename", "-"], &manifest);
    created.await.map(drop)
}

async fn huge_objects_of_all_kinds_fit_into_memory_together(scene: Scene) -> Result<()> {
    scene.product.reinstall(&MEMORY).await?;
    let before = scene.product.process(Part::ControlPlane).await?;
    let held = hold(&scene).await;
    let after = scene.product.process(Part::ControlPlane).await?;
    let peak = after.status("VmHWM").join(" ");
    println!("     the control plane took {peak} at most");
    for kind in ["rayclusters", "jobsets"] {
        scene
            .namespace
            .kubectl(&["delete", kind, "--all", "--wait=false"])
            .await?;
    }
    scene.product.reinstall(&[]).await?;
    held?;
    ensure!(
        before == after,
        "the control plane was started again: {before:?}, {after:?}"
    );
    Ok(())
}

/// Creates all of them and changes them at once, and has another JobSet's workers run meanwhile.
async fn hold(scene: &Scene) -> Result<()> {
    let namespace = &scene.namespace;
    let jobsets = (0..JOBSETS).map(|index| create(namespace, jobset(&format!("huge{index}"))));
    let clusters = (0..CLUSTERS).map(|index| create(namespace, cluster(&format!("ray{index}"))));
    tokio::try_join!(try_join_all(jobsets), try_join_all(clusters))?;
    let pods = JOBSETS + 2 * CLUSTERS;
    eventually("all pods wait", PATIENCE, async || {
        let found = namespace.kubectl(&["get", "pods", "--output", "name"]).await?;
        let found = found.lines().count();
        ensure!(found == pods, "{found} of {pods}");
        Ok(())
    })
    .await?;
    let changes = async {
        for round in 0..ROUNDS {
            let note = format!("note={round}");
            let all = ["rayclusters", "jobsets"].map(|kind| {
                let arguments = ["annotate", kind, "--all", "--overwrite", &note];
                async move { namespace.kubectl(&arguments).await.map(drop) }
            });
            try_join_all(all).await?;
        }
        Ok(())
    };
    let other = async {
        let group = scene.apply(&Manifest::new(2, "sleep 1000000")).await?;
        group.running(2).await?;
        group.status_has("/inPlaceRestart/phase", "InSync").await
    };
    tokio::try_join!(changes, other).map(drop)
}
