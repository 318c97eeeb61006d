//! Requests to the API server that are on their way, and what becomes of them.

use std::sync::Arc;

use lockstep_api::{GangStatus, JobSet};
use lockstep_control_plane::hub::Published;
use lockstep_core::gang::{PodGroupRef, PodRef};
use lockstep_core::restart::{Durable, Replacement};

use crate::time::Time;

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is carried out and answered.
    Answered,
    /// It is refused for a passing reason.
    Refused,
    /// It never arrives; the client learns of it late.
    Lost { known_after: Time },
    /// It is carried out, but the answer never arrives.
    AnswerLost { known_after: Time },
}

/// What a part of the control plane asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The group's task: its part of the status.
    Group,
    /// The group's task: pods that are looked for, created and deleted.
    Pods,
    /// The reconciler: Jobs that are created, changed and deleted.
    Jobs,
    /// The reconciler: the whole status.
    Status,
    /// The task that starts gangs: its part of the status.
    Gangs,
    /// The task that starts gangs: gates and PodGroups.
    Gates,
}

/// A request about a pod.
#[derive(Debug, Clone)]
pub(crate) enum PodRequest {
    /// Look at the Job and its pods, and then create this one if it is still missing.
    Look(Replacement),
    Create(Replacement),
    /// Delete the pod of this UID.
    Delete(String),
}

/// A request of the task.
#[derive(Debug, Clone)]
pub(crate) enum GangRequest {
    /// `status.gangs`, on top of exactly this JobSet.
    Write(Arc<JobSet>, Vec<GangStatus>),
    /// These pods lose their gate.
    Ungate(Vec<PodRef>),
    /// This PodGroup of the JobSet is to exist.
    Make(String, PodGroupRef),
    /// These PodGroups are to go, and only then is the rest done.
    Discard(Vec<String>, Vec<GangRequest>),
}

impl GangRequest {
    /// What is asked for, and how many requests that takes.
    pub(crate) fn price(&self) -> (Kind, usize) {
        match self {
            Self::Write(..) => (Kind::Gangs, 1),
            Self::Ungate(pods) => (Kind::Gates, pods.len()),
            Self::Make(..) => (Kind::Gates, 1),
            Self::Discard(names, _) => (Kind::Gates, names.len()),
        }
    }
}

/// What a step has decided.
#[derive(Debug, Clone)]
pub(crate) struct Stepped {
    pub(crate) group: String,
    pub(crate) known: Arc<JobSet>,
    pub(crate) published: Option<Published>,
    pub(crate) status: Option<Durable>,
    pub(crate) pods: Vec<PodRequest>,
}

/// What came of a write of the group's status.
#[derive(Debug, Clone)]
pub(crate) enum Written {
    Done(Arc<JobSet>),
    Conflict(Arc<JobSet>),
    Gone,
    Failed,
}
