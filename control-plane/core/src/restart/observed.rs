//! The coordinator's observation: pods and Jobs from the API server, reports from the node daemons,
//! and the durable state.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_api::WorkerRestartRequest;

use super::{Durable, Identity, Incarnation, Policy, Report, RestartLevel, UnixNanos};

/// The complete input of one decision. It is rebuilt for each step, and the coordinator keeps no
/// other view of the world.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Observed {
    /// The workers that the created Jobs of the current recreation should have.
    pub workers: BTreeMap<Identity, Worker>,
    /// How many pods from before the last recreation still exist. New workers wait until there are
    /// none.
    pub old_pods: usize,
    /// One of them.
    pub old_pod: Option<PodFact>,
    /// Names of the replicatedJobs whose Jobs have all finished.
    pub finished_stages: BTreeSet<String>,
    /// Jobs that are missing on purpose: their workers are not lost.
    pub unwanted_jobs: BTreeSet<String>,
    /// Jobs whose gang is not bound yet: their workers are not expected.
    pub waiting_jobs: BTreeSet<String>,
    /// The newest report of each incarnation, with the node that sent it. Only pods count that
    /// exist (live or terminal), belong to the current recreation and are bound to the reporting
    /// node.
    pub reports: BTreeMap<Incarnation, Report>,
    /// Nodes whose daemon has sent a snapshot to this leader.
    pub heard_nodes: BTreeSet<String>,
    /// What the API server has confirmed of `status.inPlaceRestart`.
    pub durable: Durable,
    /// The settings in the JobSet's spec and annotations.
    pub policy: Policy,
    /// True if `spec.suspend` is set.
    pub suspended: bool,
    /// Token of the latest restart request.
    pub manual_request: Option<String>,
    /// The latest request to restart some workers.
    pub worker_restart_request: Option<WorkerRestartRequest>,
}

/// One expected worker.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Worker {
    /// Name of the replicatedJob: the stage.
    pub stage: String,
    /// Live (not terminal) pods of this index, normally one.
    pub pods: Vec<PodFact>,
    /// True if the Job counts this index as completed.
    pub completed: bool,
    /// True if the Job counts this index as failed for good. The others go on without it.
    pub failed: bool,
    /// True if the Job has failed, or its controller is about to fail it and ends its pods.
    pub ending: bool,
    /// True if the Job may succeed before all of its workers do, and then ends its pods.
    pub ends_early: bool,
    /// True if its Job counts the deletion of its pod as a failure: because of
    /// `backoffLimitPerIndex`, or a podFailurePolicy rule that matches the exit codes of agents and
    /// workers then. Restarts do not delete such a pod.
    pub keeps_pod: bool,
    /// When the Job controller fails the Job at its deadline, and ends its pods.
    pub ends_at: Option<UnixNanos>,
    /// How long the Job controller waits before it replaces a lost pod, milliseconds, judged by the
    /// Job's status.
    pub back_off_ms: u64,
    /// True if it is above the minimum of its gang, or of a group whose size changes. It may never
    /// come, and joins when it does.
    pub optional: bool,
    /// How it is restarted in place: `Process`, or `Container` if it has no agent.
    pub level: RestartLevel,
    /// True if it cannot be restarted in place at all: a policy or a webhook has changed its pod,
    /// which has no agent now.
    pub stays_down: bool,
    /// Which workers its failures affect.
    pub scope: Scope,
}

/// Which workers a failure and its restart affect.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// All workers of the group.
    #[default]
    Group,
    /// Only the worker that has failed.
    Worker,
}

impl Scope {
    /// The name used in annotations, events and metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Group => "group",
            Self::Worker => "worker",
        }
    }
}

/// The relevant facts about one live pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodFact {
    /// UID of the pod.
    pub uid: String,
    /// Name of the pod.
    pub name: String,
    /// Node that it is bound to, if any.
    pub node: Option<String>,
    /// True if the kubelet reports it as Running.
    pub running: bool,
    /// True if Kubernetes has marked it as not ready because its node no longer reports.
    pub node_lost: bool,
    /// True if it is being deleted.
    pub deleting: bool,
}
