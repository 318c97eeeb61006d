//! Hollow nodes for one case only, and the JobSets that run on them.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use lockstep_api::{GangPhase, JobSet, JobSetStatus, labels};
use lockstep_integration::harness::eventually;
use lockstep_integration::harness::hollow::{self, Kubelets, POOL, RUNS_FOR, SILENT};
use serde_json::{Value, json};

use crate::scene::{PATIENCE, Scene};

/// The kubelets play for all cases, and go on after a case ends: a namespace goes away with its
/// last pod.
static KUBELETS: OnceLock<Kubelets> = OnceLock::new();

/// Long enough for kube-scheduler to bind a pod by mistake.
pub(crate) const WHILE: Duration = Duration::from_secs(3);

/// Nodes that only the case's pods may use.
pub(crate) struct Pool {
    pub(crate) scene: Scene,
}

/// A replicatedJob of one Job.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) pods: u32,
    pub(crate) minimum: u32,
    /// CPUs of each pod.
    pub(crate) cpus: u32,
}

/// A JobSet with a gang.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    pub(crate) name: String,
    pub(crate) backend: &'static str,
    pub(crate) timeout: u32,
    pub(crate) parts: Vec<Part>,
    /// How long pods run; `None` is for ever.
    pub(crate) runs: Option<Duration>,
    pub(crate) priority_class: Option<&'static str>,
    /// How many pods of a Job may fail, or be deleted.
    pub(crate) backoff_limit: u32,
    /// No two pods may be on the same node.
    pub(crate) repels: bool,
    /// A replicatedJob, the one it depends on, and `Ready` or `Complete`.
    pub(crate) depends_on: Vec<(String, String, String)>,
    /// Annotations of the JobSet.
    pub(crate) annotations: BTreeMap<&'static str, &'static str>,
    /// More fields of the JobSet's spec.
    pub(crate) more: Value,
}

pub(crate) fn part(name: &'static str, pods: u32, minimum: u32, cpus: u32) -> Part {
    Part {
        name,
        pods,
        minimum,
        cpus,
    }
}

impl Set {
    pub(crate) fn new(name: &str, backend: &'static str, parts: impl Into<Vec<Part>>) -> Self {
        Self {
            name: name.to_owned(),
            backend,
            timeout: 60,
            parts: parts.into(),
            runs: None,
            priority_class: None,
            backoff_limit: 6,
            repels: false,
            depends_on: Vec::new(),
            annotations: BTreeMap::new(),
            more: json!({}),
        }
    }

    pub(crate) fn timeout(mut self, seconds: u32) -> Self {
        self.timeout = seconds;
        self
    }

    pub(crate) fn runs(mut self, time: Duration) -> Self {
        self.runs = Some(time);
        self
    }

    pub(crate) fn priority_class(mut self, class: &'static str) -> Self {
        self.priority_class = Some(class);
        self
    }

    /// Adds these fields to the JobSet's spec.
    pub(crate) fn with(mut self, more: Value) -> Self {
        self.more = more;
        self
    }

    /// How many pods start together or not at all.
    pub(crate) fn minimum(&self) -> usize {
        self.parts.iter().map(|part| part.minimum as usize).sum()
    }

    fn manifest(&self, pool: &str) -> Value {
        let minimums: Vec<Value> = self
            .parts
            .iter()
            .map(|part| json!({"name": part.name, "minAvailable": part.minimum}))
            .collect();
        let jobs: Vec<Value> = self
            .parts
            .iter()
            .map(|part| self.replicated_job(part, pool))
            .collect();
        let mut spec = json!({
            "gang": {"backend": self.backend, "scheduleTimeoutSeconds": self.timeout, "replicatedJobs": minimums},
            "replicatedJobs": jobs,
        });
        for (key, value) in self.more.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        json!({
            "apiVersion": "jobset.x-k8s.io/v1alpha2",
            "kind": "JobSet",
            "metadata": {"name": self.name, "annotations": self.annotations},
            "spec": spec,
        })
    }

    fn replicated_job(&self, part: &Part, pool: &str) -> Value {
        let runs_for = self.runs.map(|time| time.as_millis().to_string());
        let repels = self.repels.then(|| {
            let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {labels::JOBSET_NAME: self.name}}});
            json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
        });
        let depends_on: Vec<Value> = self
            .depends_on
            .iter()
            .filter(|(name, ..)| name == part.name)
            .map(|(_, first, status)| json!({"name": first, "status": status}))
            .collect();
        json!({
            "name": part.name,
            "dependsOn": depends_on,
            "replicas": 1,
            "template": {"spec": {
                "parallelism": part.pods,
                "completions": part.pods,
                "completionMode": "Indexed",
                "backoffLimit": self.backoff_limit,
                "template": {
                    "metadata": {"annotations": runs_for.map(|millis| json!({RUNS_FOR: millis}))},
                    "spec": {
                        "restartPolicy": "Never",
                        "terminationGracePeriodSeconds": 1,
                        "nodeSelector": {POOL: pool},
                        "priorityClassName": self.priority_class,
                        "affinity": repels,
                        "containers": [{
                            "name": "worker",
                            "image": "none",
                            "resources": {"requests": {"cpu": part.cpus.to_string()}},
                        }],
                    },
                },
            }},
        })
    }
}

impl Pool {
    /// A pool of `count` nodes with `cpus` CPUs each.
    pub(crate) async fn new(scene: Scene, nodes: usize, cpus: u32) -> Result<Self> {
        hollow::create_nodes(&scene.client(), &scene.namespace.name, nodes, cpus).await?;
        KUBELETS.get_or_init(|| Kubelets::start(scene.client(), Api::all(scene.client())));
        Ok(Self { scene })
    }

    /// A pool on a cluster of its own. Its kubelets play until they are dropped.
    pub(crate) async fn apart(scene: Scene, nodes: usize, cpus: u32) -> Result<(Self, Kubelets)> {
        hollow::create_nodes(&scene.client(), &scene.namespace.name, nodes, cpus).await?;
        let kubelets = Kubelets::start(scene.client(), scene.api());
        Ok((Self { scene }, kubelets))
    }

    /// Adds nodes of one CPU.
    pub(crate) async fn more_nodes(&self, name: &str, count: usize) -> Result<()> {
        let namespace = &self.scene.namespace.name;
        let prefix = format!("{namespace}-{name}");
        hollow::create_nodes_named(&self.scene.client(), &prefix, namespace, count, 1).await
    }

    pub(crate) async fn create(&self, set: &Set) -> Result<JobSet> {
        self.scene
            .create(set.manifest(&self.scene.namespace.name))
            .await
            .with_context(|| set.name.clone())
    }

    pub(crate) async fn delete(&self, set: &str) -> Result<()> {
        let api = self.scene.api::<JobSet>();
        api.delete(set, &DeleteParams::background()).await?;
        Ok(())
    }

    pub(crate) async fn delete_pod(&self, pod: &Pod) -> Result<()> {
        let api = self.scene.api::<Pod>();
        api.delete(&pod.name_any(), &DeleteParams::default()).await?;
        Ok(())
    }

    /// Changes a set by a merge patch.
    pub(crate) async fn patch(&self, set: &str, patch: Value) -> Result<()> {
        let api = self.scene.api::<JobSet>();
        api.patch(set, &PatchParams::default(), &Patch::Merge(patch))
            .await?;
        Ok(())
    }

    /// Plays the kubelet: the pod has failed.
    pub(crate) async fn fail(&self, pod: &Pod) -> Result<()> {
        self.end(pod, "Failed").await
    }

    /// Plays the kubelet: the pod has succeeded.
    pub(crate) async fn succeed(&self, pod: &Pod) -> Result<()> {
        self.end(pod, "Succeeded").await
    }

    async fn end(&self, pod: &Pod, phase: &str) -> Result<()> {
        let status = json!({"status": {"phase": phase}});
        let api = self.scene.api::<Pod>();
        api.patch_status(&pod.name_any(), &PatchParams::default(), &Patch::Merge(status))
            .await?;
        Ok(())
    }

    /// Plays a node that no longer reports: its kubelet ignores the pod, and the node controller
    /// has marked it.
    pub(crate) async fn lose(&self, pod: &Pod) -> Result<()> {
        let api = self.scene.api::<Pod>();
        let params = PatchParams::default();
        let silent = json!({"metadata": {"annotations": {SILENT: "true"}}});
        api.patch(&pod.name_any(), &params, &Patch::Merge(silent)).await?;
        let condition = |type_: &str, status: &str| json!({"type": type_, "status": status});
        let conditions = [condition("Ready", "False"), condition("ContainersReady", "True")];
        let status = Patch::Merge(json!({"status": {"conditions": conditions}}));
        api.patch_status(&pod.name_any(), &params, &status).await?;
        Ok(())
    }

    /// The pods of a set that are not being deleted, by replicatedJob and completion index, such as
    /// `w-3`.
    pub(crate) async fn pods(&self, set: &str) -> Result<BTreeMap<String, Pod>> {
        let live = self.all_pods(set).await?.into_iter();
        let live = live.filter(|pod| pod.metadata.deletion_timestamp.is_none());
        Ok(live.map(|pod| (place(&pod), pod)).collect())
    }

    async fn all_pods(&self, set: &str) -> Result<Vec<Pod>> {
        let of_set = ListParams::default().labels(&format!("{}={set}", labels::JOBSET_NAME));
        Ok(self.scene.api::<Pod>().list(&of_set).await?.items)
    }

    /// The places of the pods that are bound to a node.
    pub(crate) async fn bound(&self, set: &str) -> Result<Vec<String>> {
        let pods = self.pods(set).await?;
        Ok(pods
            .into_iter()
            .filter(|(_, pod)| node(pod).is_some())
            .map(|(place, _)| place)
            .collect())
    }

    /// Waits until exactly these places are bound.
    pub(crate) async fn until_bound(&self, set: &str, places: &[&str]) -> Result<()> {
        eventually(&format!("{set} has {places:?} bound"), PATIENCE, async || {
            let bound = self.bound(set).await?;
            ensure!(bound == places, "{bound:?}");
            Ok(())
        })
        .await
    }

    /// Waits until this many pods exist, bound or not.
    pub(crate) async fn until_pods(&self, set: &str, count: usize) -> Result<BTreeMap<String, Pod>> {
        eventually(&format!("{set} has {count} pods"), PATIENCE, async || {
            let pods = self.pods(set).await?;
            ensure!(pods.len() == count, "{:?}", pods.keys());
            Ok(pods)
        })
        .await
    }

    /// Waits until no pod is left: a pod that is being deleted still holds its node.
    pub(crate) async fn until_gone(&self, set: &str) -> Result<()> {
        eventually(&format!("all pods of {set} are gone"), PATIENCE, async || {
            let left = self.all_pods(set).await?;
            ensure!(left.is_empty(), "{} are left", left.len());
            Ok(())
        })
        .await
    }

    /// Objects of `scheduling.k8s.io`, in the version that the API server prefers.
    pub(crate) async fn scheduling(&self, resource: &str) -> Result<Vec<DynamicObject>> {
        let resource = format!("{resource}.scheduling.k8s.io");
        let list = self
            .scene
            .namespace
            .kubectl(&["get", &resource, "--output=json"])
            .await?;
        let list: Value = serde_json::from_str(&list)?;
        Ok(serde_json::from_value(list["items"].clone())?)
    }

    pub(crate) async fn status(&self, set: &str) -> Result<JobSetStatus> {
        let jobset = self.scene.api::<JobSet>().get(set).await?;
        jobset.status.context("no status yet")
    }

    /// Waits until the status meets `expected`.
    pub(crate) async fn until_status(
        &self,
        set: &str,
        what: &str,
        expected: impl Fn(&JobSetStatus) -> bool,
    ) -> Result<JobSetStatus> {
        eventually(&format!("{set}: {what}"), PATIENCE, async || {
            let status = self.status(set).await?;
            ensure!(expected(&status), "{}", serde_json::to_string(&status)?);
            Ok(status)
        })
        .await
    }

    /// Waits for all gangs of a set to be in this phase.
    pub(crate) async fn until_phase(&self, set: &str, phase: GangPhase) -> Result<JobSetStatus> {
        self.until_status(set, &format!("{phase}"), |status| {
            !status.gangs.is_empty() && status.gangs.iter().all(|gang| gang.phase == phase)
        })
        .await
    }

    /// Waits for a set to have this condition.
    pub(crate) async fn until_condition(&self, set: &str, type_: &str, reason: &str) -> Result<JobSetStatus> {
        self.until_status(set, &format!("{type_}, {reason}"), |status| {
            status
                .condition(type_)
                .is_some_and(|condition| condition.reason == reason)
        })
        .await
    }
}

/// The place of a pod: its replicatedJob and completion index.
pub(crate) fn place(pod: &Pod) -> String {
    let label = |key: &str| pod.labels().get(key).map_or("?", String::as_str);
    format!(
        "{}-{}",
        label(labels::REPLICATED_JOB_NAME),
        label(labels::BATCH_JOB_COMPLETION_INDEX)
    )
}

/// The node that a pod is bound to.
pub(crate) fn node(pod: &Pod) -> Option<&str> {
    pod.spec.as_ref()?.node_name.as_deref()
}
