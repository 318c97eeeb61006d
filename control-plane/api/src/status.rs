//! The JobSet's `status`.
//!
//! Numbers that upstream omits when they are 0 are omitted here too. `inPlaceRestart`, `gangs` and
//! `completedJobs` are additions; the rest is upstream's. `startTime` and `executionAttempts` are
//! in its KEPs.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::gang::GangStatus;
use crate::shared::{string_enum, without_default};

/// Observed state of a JobSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct JobSetStatus {
    /// What has happened to the set, by condition type.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,

    /// How often all Jobs of the set were recreated. Jobs with a lower restart attempt are deleted.
    #[serde(default)]
    #[schemars(transform = without_default)]
    pub restarts: i32,

    /// How many of the restarts count towards `failurePolicy.maxRestarts`.
    #[serde(default, skip_serializing_if = "is_zero_i32")]
    pub restarts_count_towards_max: i32,

    /// `Completed` or `Failed` once the set has finished.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<String>")]
    pub terminal_state: Option<TerminalState>,

    /// When the set became active: at its start, when it was resumed, and at each restart of all
    /// its workers (KEP-1186). Kept while the feature gate `JobSetActiveDeadlineSeconds` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,

    /// How often the set was resumed, or all its Jobs were recreated (KEP-1282). Absent before it
    /// first runs. Counted while the feature gate `ExecutionAttemptsTracking` is on.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub execution_attempts: Option<i32>,

    /// The state of the Jobs, by replicatedJob.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub replicated_jobs_status: Vec<ReplicatedJobStatus>,

    /// For upstream's in-place restart agent: pods at this attempt or below restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub previous_in_place_restart_attempt: Option<i32>,

    /// For upstream's in-place restart agent: pods at this attempt may run their worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub current_in_place_restart_attempt: Option<i32>,

    /// State of the in-place restarts of the set's workers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_place_restart: Option<InPlaceRestartStatus>,

    /// State of the set's gangs: one, or one for each replicatedJob that starts on its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub gangs: Vec<GangStatus>,

    /// The Jobs of the present restart attempt that have completed, by replicatedJob. If their
    /// objects are removed, they are not created again, and still count as succeeded.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub completed_jobs: Vec<CompletedJobs>,
}

/// The Jobs of one replicatedJob that have completed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CompletedJobs {
    /// Name of the replicatedJob.
    pub name: String,

    /// Value of `status.restarts` when they completed. They count while it is the same.
    #[serde(default, skip_serializing_if = "is_zero_i32")]
    pub restart_attempt: i32,

    /// Their indexes, such as `0,2-4`.
    #[schemars(length(max = 131_072))]
    pub indexes: String,
}

impl JobSetStatus {
    /// The state of a gang, if it belongs to the current restart attempt.
    pub fn gang(&self, name: &str) -> Option<&GangStatus> {
        let mut gangs = self.gangs.iter();
        gangs.find(|gang| gang.name == name && gang.restart_attempt == self.restarts)
    }

    /// The status of one replicatedJob.
    pub fn replicated_job(&self, name: &str) -> Option<&ReplicatedJobStatus> {
        self.replicated_jobs_status
            .iter()
            .find(|status| status.name == name)
    }

    /// The condition of one type.
    pub fn condition(&self, type_: &str) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.type_ == type_)
    }

    /// True if the condition of this type exists and has status `True`.
    pub fn is_true(&self, type_: &str) -> bool {
        self.condition(type_)
            .is_some_and(|condition| condition.status == "True")
    }
}

/// Counts of the Jobs of one replicatedJob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedJobStatus {
    /// Name of the replicatedJob.
    pub name: String,

    /// Active Jobs with as many ready and succeeded pods as the Job needs (the smaller of
    /// parallelism and completions).
    pub ready: i32,

    /// Jobs that succeeded.
    pub succeeded: i32,

    /// Jobs that failed.
    pub failed: i32,

    /// Jobs that have a pending or running pod and are not being deleted.
    pub active: i32,

    /// Jobs that are suspended.
    pub suspended: i32,

    /// How often each Job was recreated on its own, by Job index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic"))]
    pub job_restarts: Vec<i32>,

    /// How many of these recreations count towards `failurePolicy.maxRestarts`, by Job index.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 1024), extend("x-kubernetes-list-type" = "atomic"))]
    pub job_restarts_count_towards_max: Vec<i32>,
}

string_enum! {
    /// How a JobSet has ended.
    pub enum TerminalState {
        /// Its success policy is met.
        Completed,
        /// Its failure policy gave up.
        Failed,
    }
}

/// State of the in-place restarts of the set's workers. Absent numbers mean 0.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InPlaceRestartStatus {
    /// How the workers are restarted: `Supervised` (an agent in each container restarts the
    /// process), `Plain` (the container is restarted) or `UpstreamAgent` (the JobSet has upstream's
    /// agent in its pods).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<InPlaceKind>,

    /// Progress of the restart: `InSync`, `Stopping`, `Parked`, `Releasing`, `Recreating` or
    /// `Failed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub phase: Option<InPlacePhase>,

    /// The restart attempt that all workers should run, except those that were restarted on their
    /// own since. It never falls.
    #[serde(default, skip_serializing_if = "is_zero_i64")]
    pub generation: i64,

    /// The highest restart attempt of a worker restart, if it is above `generation`.
    #[serde(default, skip_serializing_if = "is_zero_i64")]
    pub latest: i64,

    /// The worker restarts under way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub worker_restarts: Vec<RestartedWorker>,

    /// The last restart attempt that workers were allowed to run.
    #[serde(default, skip_serializing_if = "is_zero_i64")]
    pub released: i64,

    /// How many restarts, in place or by recreation, count towards `failurePolicy.maxRestarts`.
    #[serde(default, skip_serializing_if = "is_zero_i32")]
    pub restarts: i32,

    /// Term of the controller that wrote this.
    #[serde(default, skip_serializing_if = "is_zero_i64")]
    pub epoch: i64,

    /// The replicatedJobs of which all workers have run since their Jobs were created.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub started: Vec<String>,

    /// The optional pods that have joined the set, as `<Job>/<completion index>`: those above the
    /// minimum of their gang, and of a RayCluster's worker groups. The set does not wait for
    /// optional pods that never came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set"))]
    pub joined: Vec<String>,

    /// The highest level that the latest restart reached: `Process`, `Container`, `Pod` or
    /// `Recreate`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<RestartLevel>,

    /// What caused the latest restart.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<RestartCause>,

    /// The latest manual restart request that has been acted upon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handled_manual_request: Option<String>,

    /// The latest request for worker restarts that has been acted upon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub handled_worker_restart: Option<String>,

    /// When the phase last changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// A worker restart under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartedWorker {
    /// Job of the worker.
    pub job: String,

    /// Completion index of the worker within the Job.
    pub index: i32,

    /// Container of the worker.
    pub container: String,

    /// The restart attempt that the worker should run.
    pub generation: i64,
}

string_enum! {
    /// How the workers of a set are restarted in place. A set has one kind.
    pub enum InPlaceKind {
        /// An agent in each container restarts the worker process, behind a barrier.
        Supervised,
        /// The container is restarted; workers find each other again on their own.
        Plain,
        /// The JobSet has upstream's agent in its pods, which restarts the workers.
        UpstreamAgent,
    }
}

string_enum! {
    /// Progress of an in-place restart of a set.
    pub enum InPlacePhase {
        /// All workers run at the desired attempt.
        InSync,
        /// Workers are being stopped.
        Stopping,
        /// All workers have stopped and wait at the barrier.
        Parked,
        /// Workers are being started.
        Releasing,
        /// The Jobs are being recreated instead.
        Recreating,
        /// `failurePolicy.maxRestarts` is used up.
        Failed,
    }
}

string_enum! {
    /// How a restart is done, from the cheapest way to the most expensive one.
    pub enum RestartLevel {
        /// The agents start the worker processes again.
        Process,
        /// The containers are killed, and the kubelet starts them again.
        Container,
        /// A lost pod is replaced, and the workers of the others wait for it.
        Pod,
        /// The child Jobs are recreated.
        Recreate,
    }
}

/// What caused an in-place restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RestartCause {
    /// The kind of event, as one CamelCase word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,

    /// Name of the pod that it happened in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pod: Option<String>,

    /// Name of the container that it happened in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,

    /// Name of the node that it happened on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,

    /// Exit code of the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<i32>,

    /// Number of the signal that ended the worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,

    /// The last step that the worker had named in a heartbeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step: Option<i64>,

    /// Why the worker failed, as it has said itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,

    /// The cause in a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

// Serde passes the field by reference.
fn is_zero_i32(value: &i32) -> bool {
    *value == 0
}

fn is_zero_i64(value: &i64) -> bool {
    *value == 0
}

#[cfg(test)]
mod tests;
