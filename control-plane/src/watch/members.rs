//! The pods of Jobs with exclusive placement, by Job: what placement reads of them and no more.
//!
//! Costs nothing for other pods.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use lockstep_core::observed::controller_of;
use lockstep_core::placement::{Member, Role};

#[cfg(test)]
mod tests;

/// The UID of a Job with exclusive placement.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct JobUid(String);

impl JobUid {
    /// From what the API server says.
    pub fn new(uid: impl Into<String>) -> Self {
        Self(uid.into())
    }
}

impl fmt::Display for JobUid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The pods of one Job.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// Where they all are.
    pub namespace: String,
    /// By name.
    pub pods: BTreeMap<String, Member>,
}

type Jobs = HashMap<JobUid, Members>;

/// All of them.
#[derive(Default)]
pub struct MembersByJob {
    jobs: RwLock<Jobs>,
    /// A new list that is not complete yet.
    listed: RwLock<Jobs>,
}

impl MembersByJob {
    /// Calls `read` with the pods of a Job, if there are any.
    pub fn read<T>(&self, job: &JobUid, read: impl FnOnce(&Members) -> Option<T>) -> Option<T> {
        shared(&self.jobs).get(job).and_then(read)
    }

    /// The live leaders of a Job.
    #[must_use]
    pub fn leaders(&self, job: &JobUid) -> Vec<Member> {
        let is_leader = |pod: &&Member| pod.alive && pod.role == Role::Leader;
        self.read(job, |members| {
            Some(members.pods.values().filter(is_leader).cloned().collect())
        })
        .unwrap_or_default()
    }

    /// This process has deleted a pod: it is not waited for that the watch shows it.
    pub fn deleted(&self, job: &JobUid, name: &str, uid: &str) {
        if let Some(members) = exclusive(&self.jobs).get_mut(job)
            && let Some(pod) = members.pods.get_mut(name)
            && pod.uid == uid
        {
            pod.alive = false;
        }
    }

    /// Updates the cache by what the watch of pods says; returns the Jobs to look at again.
    pub(crate) fn apply(&self, event: &Event<Pod>) -> Vec<JobUid> {
        match event {
            Event::Init => {
                exclusive(&self.listed).clear();
                Vec::new()
            }
            Event::InitApply(pod) => {
                if let Some((job, member)) = read(pod) {
                    put(&mut exclusive(&self.listed), &job, pod, member);
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
                    put(&mut exclusive(&self.jobs), &job, pod, member);
                    vec![job]
                }
                None => self.remove(pod),
            },
            Event::Delete(pod) => self.remove(pod),
        }
    }

    fn remove(&self, pod: &Pod) -> Vec<JobUid> {
        if shared(&self.jobs).is_empty() {
            return Vec::new();
        }
        let (Some(owner), Some(name)) = (controller_of(&pod.metadata), &pod.metadata.name) else {
            return Vec::new();
        };
        let job = JobUid::new(&owner.uid);
        let mut jobs = exclusive(&self.jobs);
        let Some(members) = jobs.get_mut(&job) else {
            return Vec::new();
        };
        members.pods.remove(name);
        if members.pods.is_empty() {
            jobs.remove(&job);
        }
        vec![job]
    }
}

fn read(pod: &Pod) -> Option<(JobUid, Member)> {
    let member = Member::of(pod)?;
    Some((JobUid::new(member.job.clone()?), member))
}

fn put(jobs: &mut Jobs, job: &JobUid, pod: &Pod, member: Member) {
    let members = jobs.entry(job.clone()).or_insert_with(|| Members {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        pods: BTreeMap::new(),
    });
    members.pods.insert(member.name.clone(), member);
}

// Nothing under these locks can leave a map half-changed, so a panic elsewhere does not make it unusable.
fn shared(jobs: &RwLock<Jobs>) -> RwLockReadGuard<'_, Jobs> {
    jobs.read().unwrap_or_else(PoisonError::into_inner)
}

fn exclusive(jobs: &RwLock<Jobs>) -> RwLockWriteGuard<'_, Jobs> {
    jobs.write().unwrap_or_else(PoisonError::into_inner)
}
