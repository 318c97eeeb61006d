//! Requests to the API server, and what becomes of them.

use std::sync::Arc;

use lockstep_api::{GangStatus, JobSet};
use lockstep_control_plane::hub::Published;
use lockstep_core::gang::{PodGroupRef, PodRef};
use lockstep_core::restart::{Durable, Replacement};

use crate::time::Time;

/// What happens to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is carried out and answered.
    Answered,
    /// It is refused for a transient reason.
    Refused,
    /// It never arrives; the client learns of it late.
    Lost { known_after: Time },
    /// It is carried out, but the answer never arrives.
    AnswerLost { known_after: Time },
}

/// The kind of a request. Each kind has a budget of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// The group's task: its part of the status.
    Group,
    /// The group's task: looks up, creates and deletes pods.
    Pods,
    /// The reconciler: creates, changes and deletes Jobs.
    Jobs,
    /// The reconciler: the whole status.
    Status,
    /// The gang task: its part of the status.
    Gangs,
    /// The gang task: gates and PodGroups.
    Gates,
}

/// A request of a group's task about a pod.
#[derive(Debug, Clone)]
pub(crate) enum PodRequest {
    /// Read the Job and its pods, and then create this pod if it is still missing.
    Look(Replacement),
    Create(Replacement),
    /// Delete the pod with this UID.
    Delete(String),
}

/// A request of the gang task.
#[derive(Debug, Clone)]
pub(crate) enum GangRequest {
    /// Write `status.gangs`, if the JobSet still has this version.
    Write(Arc<JobSet>, Vec<GangStatus>),
    /// Remove the gates of these pods.
    Ungate(Vec<PodRef>),
    /// Create this PodGroup of the JobSet.
    Make(String, PodGroupRef),
    /// Delete these PodGroups, and send the other requests only after that.
    Discard(Vec<String>, Vec<GangRequest>),
}

impl GangRequest {
    /// The kind of the request, and how many requests it stands for.
    pub(crate) fn kind_and_number(&self) -> (Kind, usize) {
        match self {
            Self::Write(..) => (Kind::Gangs, 1),
            Self::Ungate(pods) => (Kind::Gates, pods.len()),
            Self::Make(..) => (Kind::Gates, 1),
            Self::Discard(names, _) => (Kind::Gates, names.len()),
        }
    }
}

/// What a step of the group's task has decided.
#[derive(Debug, Clone)]
pub(crate) struct Stepped {
    pub(crate) group: String,
    pub(crate) known: Arc<JobSet>,
    pub(crate) published: Option<Published>,
    pub(crate) status: Option<Durable>,
    pub(crate) pods: Vec<PodRequest>,
}

/// The result of a write of the group's status.
#[derive(Debug, Clone)]
pub(crate) enum Written {
    Done(Arc<JobSet>),
    Conflict(Arc<JobSet>),
    Gone,
    Failed,
}
