//! Jobs that were removed after they completed, until the status of their JobSet records that.
//!
//! Promises: a Job that completes and is removed between two reconciles is seen by the next one,
//! even by a reader whose status is older than the one that records it. At most [`MOST`] are kept,
//! the latest.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use k8s_openapi::api::batch::v1::Job;
use kube::Resource;
use kube::runtime::reflector::Store;
use lockstep_api::JobSet;
use lockstep_core::jobset::completed::{CompletedJob, Recorded};
use lockstep_core::jobset::owner::controller_of;
use tokio::time::Instant;

use super::follow::jobset_of;
use super::{PackedJobSet, packed};

#[cfg(test)]
mod tests;

/// How many are kept, at a few hundred bytes each. Nearly all are recorded within milliseconds.
const MOST: usize = 10_000;
/// How long a recorded Job is kept, for readers with an older status.
const KEPT: Duration = Duration::from_secs(60);

/// A Job that is gone.
struct DepartedJob {
    /// UID of its JobSet.
    jobset: String,
    job: CompletedJob,
    since: Instant,
}

/// Jobs that may not be recorded yet, in the order of their removal.
#[derive(Default)]
pub(super) struct Departed(Mutex<VecDeque<DepartedJob>>);

impl Departed {
    fn locked(&self) -> MutexGuard<'_, VecDeque<DepartedJob>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a Job that the watch shows as deleted.
    pub(super) fn put(&self, jobsets: &Store<PackedJobSet>, job: &Job) {
        let Some(completed) = CompletedJob::of(job) else {
            return;
        };
        // Many are deleted together with their JobSet.
        let jobset = jobset_of(job).and_then(|key| jobsets.get(&packed(&key)));
        let lives = |jobset: &Arc<PackedJobSet>| jobset.meta().deletion_timestamp.is_none();
        let uid = jobset.filter(lives).and_then(|jobset| jobset.meta().uid.clone());
        let Some(uid) = uid else { return };
        if controller_of(&job.metadata).is_none_or(|owner| owner.uid != uid) {
            return;
        }
        let mut all = self.locked();
        if all.len() >= MOST {
            all.pop_front();
        }
        all.push_back(DepartedJob {
            jobset: uid,
            job: completed,
            since: Instant::now(),
        });
    }

    /// The Jobs that completed in the JobSet's current restart attempt and are not in its status
    /// yet.
    pub(super) fn of(&self, jobset: &JobSet) -> Vec<Arc<Job>> {
        let mut all = self.locked();
        let uid = jobset.uid_str();
        // The usual case.
        if !all.iter().any(|gone| gone.jobset == uid) {
            return Vec::new();
        }
        let recorded = Recorded::of(jobset);
        let mut jobs = Vec::new();
        all.retain(|gone| {
            if gone.jobset != uid {
                return true;
            }
            let is_unrecorded = gone.job.is_unrecorded(jobset, &recorded);
            if is_unrecorded {
                jobs.extend(gone.job.stand_in(jobset).map(Arc::new));
            }
            is_unrecorded || gone.since.elapsed() < KEPT
        });
        jobs
    }
}
