//! Cordoned nodes, and how to tell that kube-scheduler knows of them.

use anyhow::{Result, ensure};
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use lockstep_integration::harness::eventually;
use serde_json::json;

use crate::pool::{Pool, node};
use crate::scene::PATIENCE;

/// Cordons a node, and waits until kube-scheduler knows: it may see pods before it sees nodes.
pub(crate) async fn cordon(pool: &Pool, name: &str) -> Result<()> {
    mark(pool, name, true).await?;
    eventually(
        &format!("kube-scheduler stays off {name}"),
        PATIENCE,
        async || {
            ensure!(!takes_a_pod(pool, name).await?, "it binds a pod");
            Ok(())
        },
    )
    .await
}

/// Uncordons a node.
pub(crate) async fn uncordon(pool: &Pool, name: &str) -> Result<()> {
    mark(pool, name, false).await
}

async fn mark(pool: &Pool, name: &str, unschedulable: bool) -> Result<()> {
    let nodes: Api<Node> = Api::all(pool.scene.client());
    let patch = Patch::Merge(json!({"spec": {"unschedulable": unschedulable}}));
    nodes.patch(name, &PatchParams::default(), &patch).await?;
    Ok(())
}

/// True if kube-scheduler binds a pod without requests to the node.
async fn takes_a_pod(pool: &Pool, name: &str) -> Result<bool> {
    let pods = pool.scene.api::<Pod>();
    let wanted = json!({"metadata": {"generateName": "probe-"}, "spec": {
        "nodeSelector": {"kubernetes.io/hostname": name},
        "containers": [{"name": "none", "image": "none"}],
    }});
    let probe = pods
        .create(&PostParams::default(), &serde_json::from_value(wanted)?)
        .await?
        .name_any();
    let bound = eventually("kube-scheduler has looked at a pod", PATIENCE, async || {
        let pod = pods.get(&probe).await?;
        let bound = node(&pod).is_some();
        ensure!(bound || has_no_place(&pod), "not yet");
        Ok(bound)
    })
    .await?;
    pods.delete(&probe, &DeleteParams::default().grace_period(0))
        .await?;
    Ok(bound)
}

fn has_no_place(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| &status.conditions);
    conditions.flatten().any(|condition| {
        condition.type_ == "PodScheduled" && condition.reason.as_deref() == Some("Unschedulable")
    })
}
