//! What is decided about gangs.

use jiff::{SignedDuration, Timestamp};
use lockstep_api::{GangStatus, JobSet};

use super::{Backend, gang_name};
use crate::jobset::plan::Severity;

/// What is to be done, and when to look again although nothing may have changed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decisions {
    /// By JobSet; those with nothing to do are left out.
    pub jobsets: Vec<Decision>,
    /// When a time-out or a back-off ends next.
    pub wake_at: Option<Timestamp>,
    /// How many gangs wait or back off.
    pub waiting: usize,
}

/// What is to be done about the gangs of one JobSet. Once what is to be discarded is gone, all else
/// may be done in any order: what may go does so by a status that is durable already.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Decision {
    /// Namespace of the JobSet.
    pub namespace: String,
    /// Name of the JobSet.
    pub name: String,
    /// UID of the JobSet.
    pub uid: String,
    /// What `status.gangs` should be, fenced by the resourceVersion that was decided on.
    pub write: Option<Write>,
    /// Pods whose gate is to be removed, in waves: kube-scheduler is to know of all pods of one
    /// before any of the next.
    pub ungate: Vec<Vec<PodRef>>,
    /// PodGroups that should exist by now.
    pub groups: Vec<PodGroupRef>,
    /// PodGroups that must be gone before the status is written, as they are of before their gang
    /// was stopped.
    pub discard: Vec<String>,
}

/// A new `status.gangs`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Write {
    /// All of it.
    pub gangs: Vec<GangStatus>,
    /// False: only what is missing has changed. That can wait for some seconds, during which it may
    /// change again.
    pub urgent: bool,
    /// To be told once it is written.
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

/// News of a gang.
#[derive(Clone, Debug, PartialEq)]
pub struct Announcement {
    /// Name of the gang.
    pub gang: String,
    /// What starts it.
    pub backend: Backend,
    /// What has happened.
    pub word: Word,
    /// The same in a sentence, for the event.
    pub message: String,
}

/// What has happened to a gang.
#[derive(Clone, Debug, PartialEq)]
pub enum Word {
    /// It waits for room.
    Waiting,
    /// It may be scheduled now.
    Scheduling,
    /// It may be scheduled now although the fit check does not understand all that its pods ask
    /// for.
    NotUnderstood,
    /// Pods below its minimum are in no PodGroup, as the pod webhook was not asked.
    Ungrouped,
    /// Its minimum is bound, so long after its Jobs were let to run.
    Scheduled(SignedDuration),
    /// Its minimum was not bound in time.
    TimedOut,
    /// PodGroups are not served any more: its Jobs are recreated.
    GroupLost,
}

impl Announcement {
    /// What is told of it by an event of the JobSet: of which gang it is too, where that has
    /// several.
    #[must_use]
    pub fn told(&self, jobset: &JobSet) -> String {
        let replicated_jobs = &jobset.spec.replicated_jobs;
        let mut names = replicated_jobs.iter().map(|job| gang_name(jobset, &job.name));
        if names.all(|name| name == self.gang) {
            return self.message.clone();
        }
        format!("gang {}: {}", self.gang, self.message)
    }
}

/// A PodGroup of `scheduling.k8s.io/v1alpha2` that should exist, in the JobSet's namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGroupRef {
    /// Its name.
    pub name: String,
    /// How its pods start.
    pub policy: GroupPolicy,
    /// True if one that has this name and another policy is to be recreated. Else it is left as it
    /// is.
    pub exact: bool,
}

/// How the pods of a PodGroup start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupPolicy {
    /// So many of them together. kube-scheduler counts those that have not ended.
    Gang(u32),
    /// Each by itself.
    Basic,
}

impl Word {
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
