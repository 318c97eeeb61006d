//! The pods of Jobs with exclusive placement, by Job. Only what placement reads is kept.
//!
//! Other pods cost nothing.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use lockstep_core::jobset::owner::controller_of;
use lockstep_core::jobset::placement::{Member, Role};

#[cfg(test)]
mod tests;

/// A Job with exclusive placement. A pod whose owner reference names a Job of another namespace
/// does not belong to it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobRef {
    namespace: String,
    uid: String,
}

impl JobRef {
    /// Creates a reference from a namespace and a UID.
    pub fn new(namespace: impl Into<String>, uid: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            uid: uid.into(),
        }
    }

    /// The namespace of the Job and its pods.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }
}

impl fmt::Display for JobRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.uid)
    }
}

/// The pods of one Job, by name.
pub type Members = BTreeMap<String, Member>;

type Jobs = HashMap<JobRef, Members>;

/// The pods of all such Jobs.
#[derive(Default)]
pub struct MembersByJob {
    jobs: RwLock<Jobs>,
    /// The current list, which is not complete yet.
    listed: RwLock<Jobs>,
}

impl MembersByJob {
    /// Calls `read` with the pods of a Job if it has any.
    pub fn read<T>(&self, job: &JobRef, read: impl FnOnce(&Members) -> Option<T>) -> Option<T> {
        shared(&self.jobs).get(job).and_then(read)
    }

    /// The live leaders of a Job.
    #[must_use]
    pub fn leaders(&self, job: &JobRef) -> Vec<Member> {
        let is_leader = |pod: &&Member| pod.alive && pod.role == Role::Leader;
        self.read(job, |members| {
            Some(members.values().filter(is_leader).cloned().collect())
        })
        .unwrap_or_default()
    }

    /// Marks a pod that this process deleted as dead before the watch shows it.
    pub fn deleted(&self, job: &JobRef, name: &str, uid: &str) {
        if let Some(members) = exclusive(&self.jobs).get_mut(job)
            && let Some(pod) = members.get_mut(name)
            && pod.uid == uid
        {
            pod.alive = false;
        }
    }

    /// Applies an event of the watch of pods; returns the Jobs to look at again.
    pub(crate) fn apply(&self, event: &Event<Pod>) -> Vec<JobRef> {
        match event {
            Event::Init => {
                exclusive(&self.listed).clear();
                Vec::new()
            }
            Event::InitApply(pod) => {
                if let Some((job, member)) = read(pod) {
                    put(&mut exclusive(&self.listed), &job, member);
                }
                Vec::new()
            }
            Event::InitDone => {
                let listed = std::mem::take(&mut *exclusive(&self.listed));
                // Jobs that the new list does not show need no look: a pod that is gone blocks
                // nothing.
                let affected = listed.keys().cloned().collect();
                *exclusive(&self.jobs) = listed;
                affected
            }
            Event::Apply(pod) => match read(pod) {
                Some((job, member)) => {
                    put(&mut exclusive(&self.jobs), &job, member);
                    vec![job]
                }
                None => self.remove(pod),
            },
            Event::Delete(pod) => self.remove(pod),
        }
    }

    fn remove(&self, pod: &Pod) -> Vec<JobRef> {
        if shared(&self.jobs).is_empty() {
            return Vec::new();
        }
        let (Some(owner), Some(name)) = (controller_of(&pod.metadata), &pod.metadata.name) else {
            return Vec::new();
        };
        let job = job_of(pod, &owner.uid);
        let mut jobs = exclusive(&self.jobs);
        let Some(members) = jobs.get_mut(&job) else {
            return Vec::new();
        };
        members.remove(name);
        if members.is_empty() {
            jobs.remove(&job);
        }
        vec![job]
    }
}

fn read(pod: &Pod) -> Option<(JobRef, Member)> {
    let member = Member::of(pod)?;
    let job = job_of(pod, member.job.as_ref()?);
    Some((job, member))
}

fn job_of(pod: &Pod, uid: &str) -> JobRef {
    JobRef::new(pod.metadata.namespace.clone().unwrap_or_default(), uid)
}

fn put(jobs: &mut Jobs, job: &JobRef, member: Member) {
    let members = jobs.entry(job.clone()).or_default();
    members.insert(member.name.clone(), member);
}

// Nothing under these locks can leave a map half-changed, so a panic elsewhere does not make it
// unusable.
fn shared(jobs: &RwLock<Jobs>) -> RwLockReadGuard<'_, Jobs> {
    jobs.read().unwrap_or_else(PoisonError::into_inner)
}

fn exclusive(jobs: &RwLock<Jobs>) -> RwLockWriteGuard<'_, Jobs> {
    jobs.write().unwrap_or_else(PoisonError::into_inner)
}
