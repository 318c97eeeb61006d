//! A queue of Kueue for one case, with nodes of its own.

use std::sync::OnceLock;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{
    Api, ApiResource, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams, PostParams,
};
use lockstep_api::{JobSet, JobSetStatus, labels};
use lockstep_integration::harness::eventually;
use lockstep_integration::harness::hollow::{self, Kubelets, POOL};
use serde_json::{Value, json};

use crate::scene::{PATIENCE, Scene};

/// The label that names the LocalQueue of an object.
pub(crate) const QUEUE_NAME: &str = "kueue.x-k8s.io/queue-name";
/// The LocalQueue of each case.
pub(crate) const QUEUE: &str = "team";

/// The kubelets play for all cases, and go on after a case ends: a namespace goes away with its
/// last pod.
static KUBELETS: OnceLock<Kubelets> = OnceLock::new();

/// A LocalQueue, its ClusterQueue and its flavor, which stands for the nodes of the case. The last
/// two have the name of the namespace.
pub(crate) struct Queue {
    pub(crate) scene: Scene,
}

impl Queue {
    /// A queue with this many nodes of 4 CPUs, of which all JobSets together may use `quota` CPUs.
    /// `flavor` has more fields of the ResourceFlavor's spec.
    pub(crate) async fn new(scene: Scene, nodes: usize, quota: u32, flavor: Value) -> Result<Self> {
        let name = scene.namespace.name.clone();
        play_kubelets(&scene);
        hollow::create_nodes(&scene.client(), &name, nodes, 4).await?;
        let queue = Self { scene };
        let mut spec = json!({
            "nodeLabels": {POOL: name},
            "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        });
        for (key, value) in flavor.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        queue.create_global("ResourceFlavor", &name, spec).await?;
        let cpus = json!({"name": "cpu", "nominalQuota": quota.to_string()});
        let memory = json!({"name": "memory", "nominalQuota": "64Gi"});
        let groups = json!([{
            "coveredResources": ["cpu", "memory"],
            "flavors": [{"name": name, "resources": [cpus, memory]}],
        }]);
        let spec = json!({
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}},
            "preemption": {"withinClusterQueue": "LowerPriority"},
            "resourceGroups": groups,
        });
        queue.create_global("ClusterQueue", &name, spec).await?;
        let local = object("LocalQueue", QUEUE, json!({"clusterQueue": name}));
        let queues = queue.namespaced("LocalQueue");
        queues.create(&PostParams::default(), &local).await?;
        Ok(queue)
    }

    /// Creates an object of Kueue without a namespace.
    pub(crate) async fn create_global(&self, kind: &str, name: &str, spec: Value) -> Result<()> {
        let api: Api<DynamicObject> = Api::all_with(self.scene.client(), &resource(kind));
        let made = api
            .create(&PostParams::default(), &object(kind, name, spec))
            .await;
        made.with_context(|| format!("{kind} {name}")).map(drop)
    }

    /// Objects of Kueue in the namespace.
    fn namespaced(&self, kind: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.scene.client(), &self.scene.namespace.name, &resource(kind))
    }

    /// The Workload that Kueue has made for an object.
    pub(crate) async fn workload(&self, owner: &str) -> Result<DynamicObject> {
        let all = self.namespaced("Workload").list(&ListParams::default()).await?;
        let of_owner = |workload: &DynamicObject| {
            workload
                .owner_references()
                .iter()
                .any(|reference| reference.name == owner)
        };
        all.items
            .into_iter()
            .find(of_owner)
            .with_context(|| format!("no Workload of {owner}"))
    }

    /// Changes the Workload of an object by a merge patch.
    pub(crate) async fn patch_workload(&self, owner: &str, patch: Value) -> Result<()> {
        let name = self.workload(owner).await?.name_any();
        let workloads = self.namespaced("Workload");
        workloads
            .patch(&name, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Waits until the Workload of an object has this condition.
    pub(crate) async fn until_workload(&self, owner: &str, type_: &str, status: &str) -> Result<Value> {
        eventually(
            &format!("the Workload of {owner}: {type_} {status}"),
            PATIENCE,
            async || {
                let condition = self.condition(owner, type_).await?.context("no such condition")?;
                ensure!(condition["status"] == *status, "{condition}");
                Ok(condition)
            },
        )
        .await
    }

    /// A condition of the Workload of an object.
    pub(crate) async fn condition(&self, owner: &str, type_: &str) -> Result<Option<Value>> {
        let workload = self.workload(owner).await?;
        let conditions = workload
            .data
            .pointer("/status/conditions")
            .and_then(Value::as_array);
        Ok(conditions
            .into_iter()
            .flatten()
            .find(|condition| condition["type"] == *type_)
            .cloned())
    }

    /// Creates a JobSet in the queue: one Job of this many pods with one CPU each. `more` has more
    /// fields of the spec, `priority` names a WorkloadPriorityClass.
    pub(crate) async fn create(
        &self,
        name: &str,
        pods: u32,
        priority: Option<&str>,
        more: Value,
    ) -> Result<JobSet> {
        let mut manifest = json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": name, "labels": {QUEUE_NAME: QUEUE}},
            "spec": {"replicatedJobs": [workers(pods)]},
        });
        if let Some(priority) = priority {
            manifest["metadata"]["labels"]["kueue.x-k8s.io/priority-class"] = priority.into();
        }
        for (key, value) in more.as_object().into_iter().flatten() {
            manifest["spec"][key] = value.clone();
        }
        self.scene.create(manifest).await
    }

    /// The status of a JobSet.
    pub(crate) async fn status(&self, jobset: &str) -> Result<JobSetStatus> {
        let found = self.scene.api::<JobSet>().get(jobset).await?;
        found.status.context("no status yet")
    }

    /// Waits for a JobSet to have this condition.
    pub(crate) async fn until_condition(
        &self,
        jobset: &str,
        type_: &str,
        reason: &str,
    ) -> Result<JobSetStatus> {
        eventually(&format!("{jobset}: {type_}, {reason}"), PATIENCE, async || {
            let status = self.status(jobset).await?;
            let condition = status.condition(type_).context("no such condition")?;
            ensure!(condition.reason == reason, "{condition:?}");
            Ok(status)
        })
        .await
    }

    /// The pods of a JobSet that have not ended and are not being deleted.
    pub(crate) async fn pods(&self, jobset: &str) -> Result<Vec<Pod>> {
        pods(&self.scene, &format!("{}={jobset}", labels::JOBSET_NAME)).await
    }

    /// Waits until this many pods of a JobSet run, on the nodes of the flavor.
    pub(crate) async fn until_running(&self, jobset: &str, count: usize) -> Result<Vec<Pod>> {
        until_running(&self.scene, &format!("{}={jobset}", labels::JOBSET_NAME), count).await
    }

    /// Waits until a JobSet has no pod.
    pub(crate) async fn until_no_pods(&self, jobset: &str) -> Result<()> {
        eventually(&format!("{jobset} has no pod"), PATIENCE, async || {
            let pods = self.pods(jobset).await?;
            ensure!(pods.is_empty(), "{}", shown(&pods));
            Ok(())
        })
        .await
    }

    /// Plays the kubelet: the pods of a JobSet end with this phase.
    pub(crate) async fn end(&self, jobset: &str, phase: &str) -> Result<()> {
        for pod in self.pods(jobset).await? {
            end(&self.scene, &pod, phase).await?;
        }
        Ok(())
    }
}

/// Simulates all kubelets until the tests end.
pub(crate) fn play_kubelets(scene: &Scene) {
    KUBELETS.get_or_init(|| Kubelets::start(scene.client(), Api::all(scene.client())));
}

/// A replicatedJob `w` of one Job with this many pods of one CPU each.
pub(crate) fn workers(pods: u32) -> Value {
    json!({
        "name": "w",
        "template": {"spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "template": {"spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [{"name": "worker", "image": "none", "resources": {"requests": {"cpu": "1"}}}],
            }},
        }},
    })
}

/// The pods with these labels that have not ended and are not being deleted.
pub(crate) async fn pods(scene: &Scene, selector: &str) -> Result<Vec<Pod>> {
    let all = scene
        .api::<Pod>()
        .list(&ListParams::default().labels(selector))
        .await?;
    let live = |pod: &Pod| {
        pod.metadata.deletion_timestamp.is_none() && !matches!(phase(pod), "Succeeded" | "Failed")
    };
    Ok(all.items.into_iter().filter(live).collect())
}

/// Waits until this many pods with these labels run.
pub(crate) async fn until_running(scene: &Scene, selector: &str, count: usize) -> Result<Vec<Pod>> {
    eventually(&format!("{count} pods of {selector} run"), PATIENCE, async || {
        let pods = pods(scene, selector).await?;
        let all_run = pods.iter().all(|pod| phase(pod) == "Running");
        ensure!(pods.len() == count && all_run, "{}", shown(&pods));
        Ok(pods)
    })
    .await
}

/// Plays the kubelet: the pod ends with this phase, unless the Job controller has deleted it.
pub(crate) async fn end(scene: &Scene, pod: &Pod, phase: &str) -> Result<()> {
    let ended = Patch::Merge(json!({"status": {"phase": phase}}));
    let api = scene.api::<Pod>();
    let patched = api
        .patch_status(&pod.name_any(), &PatchParams::default(), &ended)
        .await;
    match patched {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        done => Ok(done.map(drop)?),
    }
}

/// The phase of a pod.
fn phase(pod: &Pod) -> &str {
    let status = pod.status.as_ref();
    status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default()
}

/// The pods with their phases, for a report.
fn shown(pods: &[Pod]) -> String {
    let all: Vec<String> = pods
        .iter()
        .map(|pod| format!("{} {}", pod.name_any(), phase(pod)))
        .collect();
    all.join(", ")
}

/// A resource of Kueue.
fn resource(kind: &str) -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("kueue.x-k8s.io", "v1beta2", kind))
}

/// An object of Kueue. A WorkloadPriorityClass has no spec: its fields are in `spec`.
fn object(kind: &str, name: &str, spec: Value) -> DynamicObject {
    let mut object = DynamicObject::new(name, &resource(kind));
    object.data = match kind {
        "WorkloadPriorityClass" => spec,
        _ => json!({"spec": spec}),
    };
    object
}
