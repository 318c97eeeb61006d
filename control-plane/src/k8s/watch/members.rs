//! The pods of Jobs with exclusive placement, by Job: what placement reads of them and no more.
//!
//! Costs nothing for other pods.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use lockstep_core::jobset::owner::controller_of;
use lockstep_core::jobset::placement::{Member, Role};

#[cfg(test)]
mod tests;

/// A Job with exclusive placement. A pod that names another namespace's Job as its owner is no pod
/// of that Job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobRef {
    namespace: String,
    uid: String,
}

impl JobRef {
    /// From what the API server says.
    pub fn new(namespace: impl Into<String>, uid: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            uid: uid.into(),
        }
    }

    /// Where the Job and its pods are.
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

/// All of them.
#[derive(Default)]
pub struct MembersByJob {
    jobs: RwLock<Jobs>,
    /// A new list that is not complete yet.
    listed: RwLock<Jobs>,
}

impl MembersByJob {
    /// Calls `read` with the pods of a Job, if there are any.
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

    /// This process has deleted a pod: it is not waited for that the watch shows it.
    pub fn deleted(&self, job: &JobRef, name: &str, uid: &str) {
        if let Some(members) = exclusive(&self.jobs).get_mut(job)
            && let Some(pod) = members.get_mut(name)
            && pod.uid == uid
        {
            pod.alive = false;
        }
    }

    /// Updates the cache by what the watch of pods says; returns the Jobs to look at again.
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
                // What the new list does not show needs no look: who is gone is in nobody's way.
                let concerned = listed.keys().cloned().collect();
                *exclusive(&self.jobs) = listed;
                concerned
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
