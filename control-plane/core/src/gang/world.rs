//! What the gang controller knows about the cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1 as k8s;
use lockstep_api::{GangStatus, labels};

use super::{Needs, Resources};

/// All nodes and all gangs of a cluster.
///
/// The states of gangs must be at least as new as the controller's own writes, so that no room is
/// given away twice.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct World {
    /// By name.
    pub nodes: BTreeMap<String, Node>,
    /// The JobSets that have gangs, run, and have not finished, in any order.
    pub jobsets: Vec<JobSetGangs>,
    /// True if the API server serves no PodGroups: gangs that wait for theirs would wait forever.
    pub pod_groups_gone: bool,
}

/// A node, with what its pods take.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Node {
    /// Its labels, with `metadata.name` under [`Node::NAME`].
    pub labels: BTreeMap<String, String>,
    /// Its taints.
    pub taints: Vec<k8s::Taint>,
    /// True if it is cordoned.
    pub unschedulable: bool,
    /// The resources for pods.
    pub allocatable: Resources,
    /// The requests of the pods that are bound to it and have not ended, of resources that it has.
    /// See [`Node::take`].
    pub requested: Resources,
    /// The part requested by pods outside JobSets, which are not expected to end.
    pub lasting: Resources,
    /// The JobSets' Jobs that have such pods on it, by the labels [`labels::JOB_KEY`] and
    /// [`labels::PRIORITY`].
    pub jobs: BTreeSet<(String, Option<String>)>,
}

/// What a bound pod takes of its node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Footprint {
    /// The node that the pod is bound to.
    pub node: String,
    /// Its requests.
    pub requests: Resources,
    /// The Job of a JobSet that it belongs to, as in [`Node::jobs`].
    pub job: Option<(String, Option<String>)>,
}

/// The gangs of one JobSet, in the order of its replicatedJobs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobSetGangs {
    /// Namespace of the JobSet.
    pub namespace: String,
    /// Name of the JobSet.
    pub name: String,
    /// UID of the JobSet.
    pub uid: String,
    /// When it was created.
    pub created: Timestamp,
    /// Its `status.restarts`, which its Jobs and pods carry as the label `restart-attempt`.
    pub restart_attempt: i32,
    /// Its `status.gangs`.
    pub status: Vec<GangStatus>,
    /// The gangs whose Jobs have been created, and the one that starts first.
    pub gangs: Vec<Gang>,
}

/// Pods that start together, with the optional workers that go with them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Gang {
    /// As in `status.gangs`.
    pub name: String,
    /// Name of its PodGroup, if kube-scheduler starts it. It is unique to the JobSet, restart
    /// attempt and minimum.
    pub pod_group: Option<String>,
    /// The PriorityClass that the templates of its pods name. Without meaning for gates.
    pub priority_class: Option<String>,
    /// How long the minimum may take to be bound after its release.
    pub timeout: SignedDuration,
    /// When its Jobs were started.
    pub asked: Option<Timestamp>,
    /// True if one of its Jobs that should have pods has been created. Before that the gang has a
    /// position in the queue, but no state.
    pub is_created: bool,
    /// True if all its Jobs that have not ended are suspended.
    pub is_stopped: bool,
    /// Its replicatedJobs, in the order of the spec.
    pub parts: Vec<Part>,
}

/// What starts the pods of a gang together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backend {
    /// This controller, by scheduling gates on all pods.
    #[default]
    Gates,
    /// kube-scheduler, by a PodGroup. Only optional workers have gates.
    PodGroup,
}

/// One replicatedJob of a gang.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Name of the replicatedJob.
    pub name: String,
    /// How many of its pods are below the minimum.
    pub minimum: u32,
    /// How many Jobs it has.
    pub replicas: u32,
    /// How many pods each of its Jobs runs at the same time.
    pub parallelism: u32,
    /// True if a Job has as many pods as completion indexes, so that the index identifies a pod.
    pub indexed: bool,
    /// The ordinals of its pods whose work is done. They count by Job index, then by completion
    /// index.
    pub done: BTreeSet<u32>,
    /// The needs of a pod from its template, by Job index. They stand for pods that have not been
    /// created yet.
    pub needs: Vec<Arc<Needs>>,
    /// Its pods of the current restart attempt, ended ones included, in any order.
    pub pods: Vec<Arc<Pod>>,
}

/// A pod of a gang.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// Its namespace. Only a JobSet of the same namespace is the one that `jobset_uid` names.
    pub namespace: String,
    /// UID of its JobSet.
    pub jobset_uid: String,
    /// The restart attempt of the JobSet that it was created for.
    pub restart_attempt: i32,
    /// Name of its replicatedJob.
    pub replicated_job: String,
    /// Index of its Job in the replicatedJob.
    pub job_index: u32,
    /// Its completion index.
    pub index: Option<u32>,
    /// True if it has the gate [`labels::GANG_GATE`].
    pub gated: bool,
    /// True if it is in its gang's PodGroup.
    pub in_group: bool,
    /// The node that it is bound to.
    pub node: Option<String>,
    /// Its phase.
    pub phase: PodPhase,
    /// True if it is being deleted.
    pub deleting: bool,
    /// True if Kubernetes has marked it as not ready because its node no longer reports.
    pub node_lost: bool,
    /// `spec.priority`.
    pub priority: i32,
    /// What it needs of a node.
    pub needs: Arc<Needs>,
}

/// `status.phase` of a pod, as far as gangs are concerned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PodPhase {
    /// Not started.
    #[default]
    Pending,
    /// Started and not ended.
    Running,
    /// Ended successfully.
    Succeeded,
    /// Ended unsuccessfully.
    Failed,
}

impl Gang {
    /// What starts the gang.
    #[must_use]
    pub fn backend(&self) -> Backend {
        match self.pod_group {
            Some(_) => Backend::PodGroup,
            None => Backend::Gates,
        }
    }
}

impl Node {
    /// The key of the node's name in [`Node::labels`], for affinity by field. No label can have
    /// this key.
    pub const NAME: &'static str = "metadata.name";

    /// Reads a node. Its pods are not counted yet.
    #[must_use]
    pub fn of(node: &k8s::Node) -> Self {
        let spec = node.spec.as_ref();
        let status = node.status.as_ref();
        let mut labels = node.metadata.labels.clone().unwrap_or_default();
        let name = node.metadata.name.clone().unwrap_or_default();
        labels.insert(Self::NAME.to_owned(), name);
        Self {
            labels,
            taints: spec.and_then(|spec| spec.taints.clone()).unwrap_or_default(),
            unschedulable: spec.and_then(|spec| spec.unschedulable).unwrap_or(false),
            allocatable: status
                .and_then(|status| status.allocatable.as_ref())
                .map(Resources::of)
                .unwrap_or_default(),
            requested: Resources::default(),
            lasting: Resources::default(),
            jobs: BTreeSet::new(),
        }
    }

    /// Counts a bound pod. A resource that the node does not have cannot be used up.
    pub fn take(&mut self, footprint: &Footprint) {
        self.requested.add_known(&footprint.requests, &self.allocatable);
        match &footprint.job {
            Some(job) => {
                self.jobs.insert(job.clone());
            }
            None => self.lasting.add_known(&footprint.requests, &self.allocatable),
        }
    }
}

impl Footprint {
    /// What a pod takes of its node; `None`: nothing, because it is not bound or has ended.
    #[must_use]
    pub fn of(pod: &k8s::Pod) -> Option<Self> {
        let spec = pod.spec.as_ref()?;
        let node = spec.node_name.clone().filter(|node| !node.is_empty())?;
        if matches!(phase(pod), PodPhase::Succeeded | PodPhase::Failed) {
            return None;
        }
        let label = |key: &str| pod.metadata.labels.as_ref()?.get(key).cloned();
        Some(Self {
            node,
            requests: super::needs::taken(spec),
            job: label(labels::JOB_KEY).map(|key| (key, label(labels::PRIORITY))),
        })
    }

    /// Approximate size of its text and its requests in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let job = self.job.iter();
        let job = job.map(|(key, priority)| key.len() + priority.as_ref().map_or(0, String::len));
        self.node.len() + job.sum::<usize>() + super::needs::bytes_of(&self.requests)
    }
}

impl Pod {
    /// Reads a pod; `None`: it belongs to no JobSet.
    #[must_use]
    pub fn of(pod: &k8s::Pod) -> Option<Self> {
        let label = |key: &str| pod.metadata.labels.as_ref()?.get(key);
        let number = |key: &str| label(key)?.parse().ok();
        let spec = pod.spec.as_ref()?;
        let mut gates = spec.scheduling_gates.iter().flatten();
        Some(Self {
            name: pod.metadata.name.clone()?,
            uid: pod.metadata.uid.clone()?,
            namespace: pod.metadata.namespace.clone()?,
            jobset_uid: label(labels::JOBSET_UID)?.clone(),
            restart_attempt: label(labels::RESTART_ATTEMPT)?.parse().ok()?,
            replicated_job: label(labels::REPLICATED_JOB_NAME)?.clone(),
            job_index: number(labels::JOB_INDEX)?,
            index: number(labels::BATCH_JOB_COMPLETION_INDEX),
            gated: gates.any(|gate| gate.name == labels::GANG_GATE),
            in_group: super::needs::in_group(&pod.metadata, spec) == Some(true),
            node: spec.node_name.clone().filter(|node| !node.is_empty()),
            phase: phase(pod),
            deleting: pod.metadata.deletion_timestamp.is_some(),
            node_lost: pod.status.as_ref().is_some_and(crate::jobset::pod::node_lost),
            priority: spec.priority.unwrap_or(0),
            needs: Arc::new(Needs::of(&pod.metadata, spec)),
        })
    }

    /// True if it has ended, successfully or not.
    #[must_use]
    pub fn is_terminal(&self) -> bool {
        matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }
}

fn phase(pod: &k8s::Pod) -> PodPhase {
    match pod.status.as_ref().and_then(|status| status.phase.as_deref()) {
        Some("Running") => PodPhase::Running,
        Some("Succeeded") => PodPhase::Succeeded,
        Some("Failed") => PodPhase::Failed,
        _ => PodPhase::Pending,
    }
}
