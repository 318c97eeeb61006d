//! Decisions about gangs.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{GangStatus, JobSet};

use super::{Backend, gang_name};
use crate::jobset::plan::Severity;

/// What to do, and when to decide again even if nothing changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// One per JobSet; those with nothing to do are left out.
    pub jobsets: Vec<Decision>,
    /// When a time-out or a back-off ends next.
    pub wake_at: Option<Timestamp>,
    /// How many gangs wait or back off.
    pub waiting: usize,
}

/// What to do about the gangs of one JobSet. After the deletions in `discard` the rest may be done
/// in any order: pods are released only by a status that is already durable.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Namespace of the JobSet.
    pub namespace: String,
    /// Name of the JobSet.
    pub name: String,
    /// UID of the JobSet.
    pub uid: String,
    /// The new `status.gangs`, fenced by the resourceVersion on which the decision is based.
    pub write: Option<Write>,
    /// Pods whose gate is to be removed, in waves: kube-scheduler must see all pods of one wave
    /// before any of the next.
    pub ungate: Vec<Vec<PodRef>>,
    /// PodGroups that should exist.
    pub pod_groups: Vec<PodGroupRef>,
    /// PodGroups that must be gone before the status is written, since they date from before their
    /// gang was stopped.
    pub discard: Vec<String>,
}

/// A new `status.gangs`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Write {
    /// The whole list.
    pub gangs: Vec<GangStatus>,
    /// False if only messages have changed. That write can wait for some seconds, in which they may
    /// change again.
    pub urgent: bool,
    /// To publish once it is written.
    pub announcements: Vec<Announcement>,
}

/// One pod, and no other of the same name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PodRef {
    /// Its name, in the JobSet's namespace.
    pub name: String,
    /// Its UID, a precondition of the write.
    pub uid: String,
}

/// An event in the life of a gang.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// Name of the gang.
    pub gang: String,
    /// What starts it.
    pub backend: Backend,
    /// What has happened.
    pub event: GangEvent,
    /// The message of the event.
    pub message: String,
}

/// What has happened to a gang.
#[derive(Clone, Debug, PartialEq)]
pub enum GangEvent {
    /// It waits for room.
    Waiting,
    /// It may be scheduled now.
    Scheduling,
    /// It may be scheduled now, although the fit check does not understand all that its pods ask
    /// for.
    NotUnderstood,
    /// Pods below its minimum are in no PodGroup, because the pod webhook was not called.
    Ungrouped,
    /// Its minimum is bound, this long after its Jobs were started.
    Scheduled(SignedDuration),
    /// Its minimum was not bound in time.
    TimedOut,
    /// PodGroups are no longer served: its Jobs are recreated.
    GroupLost,
}

impl Announcement {
    /// The message for an event of the JobSet. It names the gang if the JobSet has several.
    #[must_use]
    pub fn message_for(&self, jobset: &JobSet) -> String {
        let replicated_jobs = &jobset.spec.replicated_jobs;
        let mut names = replicated_jobs.iter().map(|job| gang_name(jobset, &job.name));
        if names.all(|name| name == self.gang) {
            return self.message.clone();
        }
        format!("gang {}: {}", self.gang, self.message)
    }
}

/// A PodGroup (`scheduling.k8s.io`) that should exist, in the JobSet's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGroupRef {
    /// Its name.
    pub name: String,
    /// How its pods start.
    pub policy: GroupPolicy,
    /// The PriorityClass of its pods, if their templates name one. From Kubernetes 1.37 on,
    /// kube-scheduler refuses a PodGroup of another priority than its pods.
    pub priority_class: Option<String>,
    /// True if an existing PodGroup of this name with another policy must be recreated. Otherwise
    /// it is left unchanged.
    pub exact: bool,
}

/// How the pods of a PodGroup start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupPolicy {
    /// This many of them together. kube-scheduler counts those that have not ended.
    Gang(u32),
    /// Each by itself.
    Basic,
}

impl GangEvent {
    /// Reason and severity of the event.
    #[must_use]
    pub fn reason(&self) -> (&'static str, Severity) {
        match self {
            Self::Waiting => ("GangWaiting", Severity::Normal),
            Self::Scheduling => ("GangScheduling", Severity::Normal),
            Self::Ungrouped => ("GangPodsUngrouped", Severity::Warning),
            Self::NotUnderstood => ("GangFitUnknown", Severity::Warning),
            Self::Scheduled(_) => ("GangScheduled", Severity::Normal),
            Self::TimedOut => ("GangTimeout", Severity::Warning),
            Self::GroupLost => ("GangPodGroupLost", Severity::Warning),
        }
    }
}
