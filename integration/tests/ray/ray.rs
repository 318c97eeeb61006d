//! The objects of Ray's tests.

use std::fmt::Debug;

use anyhow::{Context, Result, ensure};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::events::v1::Event;
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Resource, ResourceExt};
use lockstep_api::labels;
use lockstep_api::ray::{RayCluster, RayClusterStatus};
use lockstep_integration::harness::eventually;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::scene::{PATIENCE, Scene};

/// A cluster `rc` with a head, this many workers of the group `small`, and more fields of its spec.
pub(crate) fn cluster(workers: i32, more: Value) -> Value {
    let template = json!({"spec": {"containers": [{"name": "ray", "image": "none"}]}});
    let mut manifest = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": "rc"},
        "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": template},
            "workerGroupSpecs": [{"groupName": "small", "replicas": workers, "rayStartParams": {}, "template": template}],
        },
    });
    state(&mut manifest, more);
    manifest
}

/// A RayJob `rj` on a cluster of this many workers, with more fields of its spec.
pub(crate) fn rayjob(workers: i32, more: Value) -> Value {
    let mut manifest = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": {"name": "rj"},
        "spec": {"entrypoint": "python main.py", "rayClusterSpec": cluster(workers, json!({}))["spec"]},
    });
    state(&mut manifest, more);
    manifest
}

/// A RayCronJob `cj` of such jobs, with more fields of its spec.
pub(crate) fn raycronjob(schedule: &str, job: &Value, more: Value) -> Value {
    let mut manifest = json!({
        "apiVersion": "ray.io/v1",
        "kind": "RayCronJob",
        "metadata": {"name": "cj"},
        "spec": {"schedule": schedule, "jobTemplate": job["spec"]},
    });
    state(&mut manifest, more);
    manifest
}

/// Sets more fields of the spec.
fn state(manifest: &mut Value, more: Value) {
    let Value::Object(more) = more else { return };
    for (key, value) in more {
        manifest["spec"][key] = value;
    }
}

/// One of Ray's kinds.
pub(crate) trait Kind:
    Resource<Scope = NamespaceResourceScope, DynamicType = ()> + DeserializeOwned + Serialize + Clone + Debug
{
}

impl<K> Kind for K where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + DeserializeOwned
        + Serialize
        + Clone
        + Debug
{
}

impl Scene {
    /// Creates an object of one of Ray's kinds.
    pub(crate) async fn make<K: Kind>(&self, manifest: Value) -> Result<K> {
        let object = serde_json::from_value(manifest)?;
        Ok(self.api::<K>().create(&PostParams::default(), &object).await?)
    }

    /// Changes an object of one of Ray's kinds by a merge patch.
    pub(crate) async fn merge<K: Kind>(&self, name: &str, patch: Value) -> Result<K> {
        let (params, patch) = (PatchParams::default(), Patch::Merge(patch));
        Ok(self.api::<K>().patch(name, &params, &patch).await?)
    }

    pub(crate) async fn create_cluster(&self, manifest: Value) -> Result<RayCluster> {
        self.make(manifest).await
    }

    /// Changes the cluster by a merge patch.
    pub(crate) async fn patch_cluster(&self, patch: Value) -> Result<RayCluster> {
        self.merge("rc", patch).await
    }

    /// Scales the group to this many replicas.
    pub(crate) async fn scale(&self, replicas: i32) -> Result<()> {
        let mut cluster = self.api::<RayCluster>().get("rc").await?;
        cluster.spec.worker_group_specs[0].replicas = Some(replicas);
        cluster.metadata.managed_fields = None;
        self.patch_cluster(json!({"spec": {"workerGroupSpecs": cluster.spec.worker_group_specs}}))
            .await?;
        Ok(())
    }

    pub(crate) async fn cluster_status(&self) -> Result<RayClusterStatus> {
        self.api::<RayCluster>()
            .get("rc")
            .await?
            .status
            .context("no status yet")
    }

    /// Waits until the cluster's status meets `expected`.
    pub(crate) async fn until_cluster(
        &self,
        what: &str,
        expected: impl Fn(&RayClusterStatus) -> bool,
    ) -> Result<RayClusterStatus> {
        eventually(what, PATIENCE, async || {
            let status = self.cluster_status().await?;
            ensure!(expected(&status), "{}", serde_json::to_string(&status)?);
            Ok(status)
        })
        .await
    }

    pub(crate) async fn until_state(&self, state: &str) -> Result<RayClusterStatus> {
        self.until_cluster(&format!("the cluster is {state}"), |status| {
            status.state.as_ref().map_or("", |state| state.as_str()) == state
        })
        .await
    }

    /// The pods of a role that are not being deleted.
    pub(crate) async fn ray_pods(&self, node_type: &str) -> Result<Vec<Pod>> {
        let of_role = ListParams::default().labels(&format!("ray.io/node-type={node_type}"));
        let pods = self.api::<Pod>().list(&of_role).await?.items;
        Ok(pods
            .into_iter()
            .filter(|pod| pod.metadata.deletion_timestamp.is_none())
            .collect())
    }

    /// Plays the kubelet: waits until this many pods of a role exist, and makes them run and be
    /// ready. Returns their UIDs.
    pub(crate) async fn ray_pods_run(&self, node_type: &str, count: usize) -> Result<Vec<String>> {
        let conditions = json!([{"type": "Ready", "status": "True"}]);
        let status = json!({"status": {"phase": "Running", "podIP": "10.1.2.3", "podIPs": [{"ip": "10.1.2.3"}], "conditions": conditions}});
        let mut uids = self.ray_pods_show(node_type, count, &status).await?;
        uids.sort();
        Ok(uids)
    }

    /// Plays the kubelet: waits until this many pods of a role exist, and changes the status of
    /// each by this merge patch. Returns their UIDs.
    pub(crate) async fn ray_pods_show(
        &self,
        node_type: &str,
        count: usize,
        status: &Value,
    ) -> Result<Vec<String>> {
        eventually(&format!("{count} pods of {node_type}"), PATIENCE, async || {
            let pods = self.ray_pods(node_type).await?;
            let names: Vec<String> = pods.iter().map(ResourceExt::name_any).collect();
            ensure!(pods.len() == count, "{names:?}");
            // A pod that has gone meanwhile does not count.
            for name in names {
                let api = self.api::<Pod>();
                api.patch_status(&name, &PatchParams::default(), &Patch::Merge(status))
                    .await?;
            }
            Ok(pods.iter().filter_map(ResourceExt::uid).collect())
        })
        .await
    }

    /// Waits for an event with this reason about an object of a kind; returns its note.
    pub(crate) async fn until_event_of(&self, kind: &str, reason: &str) -> Result<String> {
        eventually(&format!("an event {reason} of a {kind}"), PATIENCE, async || {
            let events = self.api::<Event>().list(&ListParams::default()).await?.items;
            let of_kind = |event: &Event| {
                let regarding = event.regarding.as_ref();
                regarding.is_some_and(|object| object.kind.as_deref() == Some(kind))
            };
            let found = events
                .into_iter()
                .find(|event| event.reason.as_deref() == Some(reason) && of_kind(event));
            Ok(found.context("no such event")?.note.unwrap_or_default())
        })
        .await
    }

    /// The Job of a replicatedJob that a pod belongs to.
    pub(crate) fn job_of(pod: &Pod) -> Option<&str> {
        pod.labels().get(labels::BATCH_JOB_NAME).map(String::as_str)
    }
}
