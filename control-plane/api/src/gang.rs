//! Gang start: `spec.gang` and `status.gangs`, additions to upstream's API.
//!
//! A gang is a set of pods that start together or not at all: the minimum of the replicatedJobs
//! that are created together. Pods above the minimum are optional and start if there is room.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::{string_enum, without_default};

/// The default number of seconds from the moment that a gang may be scheduled until its whole
/// minimum must be bound.
pub const DEFAULT_SCHEDULE_TIMEOUT_SECONDS: i32 = 60;

/// The minimum of pods that a set starts with.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Gang {
    /// How many pods of the set start together, or not at all. By default the sum of the minimums
    /// of all replicatedJobs. If set, it must equal that sum; with a single replicatedJob it is its
    /// minimum.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub min_available: Option<i32>,

    /// The minimum by replicatedJob. Those that are not listed start with all their pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub replicated_jobs: Vec<GangReplicatedJob>,

    /// Seconds within which the minimum must be bound to nodes, from the moment that the first of
    /// its pods may be. After that, the pods bound so far give up their nodes, and the gang waits
    /// again.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1), extend("default" = 60))]
    pub schedule_timeout_seconds: Option<i32>,

    /// What starts a gang together: `PodGroup` (kube-scheduler, if the API server serves
    /// PodGroups), `Gates` (this controller, by scheduling gates) or `Auto`
    /// (`PodGroup` if available, else `Gates`).
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Auto"))]
    pub backend: Option<GangBackend>,
}

/// The minimum of one replicatedJob.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangReplicatedJob {
    /// Name of the replicatedJob.
    pub name: String,

    /// How many of its pods belong to the gang, in the order of Job index, then completion index.
    #[schemars(range(min = 1))]
    pub min_available: i32,
}

string_enum! {
    /// What starts a gang together.
    pub enum GangBackend {
        /// `PodGroup` if it is served, else `Gates`.
        Auto,
        /// kube-scheduler, by a Workload and a PodGroup (KEP-4671).
        PodGroup,
        /// This controller, by scheduling gates (KEP-3521).
        Gates,
    }
}

string_enum! {
    /// State of a gang.
    pub enum GangPhase {
        /// There is no room for the minimum. Nothing is held.
        Waiting,
        /// There is room, and the minimum is being bound to nodes.
        Scheduling,
        /// The whole minimum has been bound to nodes.
        Scheduled,
        /// The minimum was not bound in time. Its Jobs are suspended until the gang waits again.
        BackingOff,
    }
}

/// State of one gang.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct GangStatus {
    /// Name of the gang: that of its replicatedJob if the replicatedJobs of the set start one after
    /// another; else that of the first one, for all of them.
    pub name: String,

    /// Value of `status.restarts` that the gang belongs to. The state of an earlier attempt is
    /// ignored.
    #[serde(default)]
    #[schemars(transform = without_default)]
    pub restart_attempt: i32,

    /// State of the gang: `Waiting`, `Scheduling`, `Scheduled` or `BackingOff`.
    pub phase: GangPhase,

    /// How many pods start together, or not at all.
    pub min_available: i32,

    /// How often the gang was released to the scheduler.
    #[serde(default)]
    #[schemars(transform = without_default)]
    pub attempt: i32,

    /// When the phase began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Time>,

    /// When the phase times out: `Scheduling` turns into `BackingOff`, and `BackingOff` into
    /// `Waiting`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<Time>,

    /// What the gang waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

impl Gang {
    /// The listed minimum of a replicatedJob, in pods; `None` if it is not listed.
    pub fn listed(&self, replicated_job: &str) -> Option<i32> {
        let mut listed = self.replicated_jobs.iter();
        listed
            .find(|entry| entry.name == replicated_job)
            .map(|entry| entry.min_available)
    }

    /// Seconds until a gang that may be scheduled must be bound.
    pub fn schedule_timeout_seconds(&self) -> i32 {
        self.schedule_timeout_seconds
            .unwrap_or(DEFAULT_SCHEDULE_TIMEOUT_SECONDS)
    }

    /// The requested backend. An unknown value means the default.
    pub fn backend(&self) -> GangBackend {
        match &self.backend {
            None | Some(GangBackend::Other(_)) => GangBackend::Auto,
            Some(backend) => backend.clone(),
        }
    }
}
