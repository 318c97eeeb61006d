//! Holds back statuses that differ from the present one in nothing but counts of Jobs, so that the many changes of many Jobs make few writes.
//!
//! Promises: such a status is written at most [`HELD`] after the first look that wanted it; any other (a condition, a restart, an end, an event)
//! is written at once, with the counts of that moment. No decision is made by these counts, so none is made later for it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::{JobSet, JobSetStatus, ReplicatedJobStatus};
use lockstep_core::Plan;
use tokio::time::Instant;

#[cfg(test)]
mod tests;

/// How long counts may be out of date.
pub(super) const HELD: Duration = Duration::from_millis(200);

/// Since when which JobSets have had other counts than their status says.
#[derive(Default)]
pub(super) struct Counts {
    since: Mutex<HashMap<ObjectRef<JobSet>, Instant>>,
}

impl Counts {
    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectRef<JobSet>, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the status out of the plan where it is to wait, and returns for how long.
    pub(super) fn hold_back(
        &self,
        key: &ObjectRef<JobSet>,
        jobset: &JobSet,
        plan: &mut Plan,
    ) -> Option<Duration> {
        let waits = plan.events.is_empty()
            && plan.finished.is_none()
            && plan
                .status
                .as_ref()
                .is_some_and(|status| differ_in_counts(jobset.status.as_ref(), status));
        let mut since = self.locked();
        if !waits {
            since.remove(key);
            return None;
        }
        let left = HELD.saturating_sub(since.entry(key.clone()).or_insert_with(Instant::now).elapsed());
        if left.is_zero() {
            since.remove(key);
            return None;
        }
        plan.status = None;
        Some(left)
    }

    /// The JobSet is gone.
    pub(super) fn forget(&self, key: &ObjectRef<JobSet>) {
        self.locked().remove(key);
    }
}

fn differ_in_counts(before: Option<&JobSetStatus>, after: &JobSetStatus) -> bool {
    let mut before = before.cloned().unwrap_or_default();
    let restarts = |job: &ReplicatedJobStatus| {
        let ReplicatedJobStatus {
            name,
            job_restarts,
            job_restarts_count_towards_max,
            ..
        } = job.clone();
        (name, job_restarts, job_restarts_count_towards_max)
    };
    // Restarts of single Jobs are no mere counts: decisions rest on them.
    let same_restarts = after.replicated_jobs_status.iter().all(|job| {
        let none = || ReplicatedJobStatus {
            name: job.name.clone(),
            ..ReplicatedJobStatus::default()
        };
        restarts(job) == restarts(&before.replicated_job(&job.name).cloned().unwrap_or_else(none))
    });
    before
        .replicated_jobs_status
        .clone_from(&after.replicated_jobs_status);
    // No mere count either, but who is removed meanwhile is seen until it is written.
    before.completed_jobs.clone_from(&after.completed_jobs);
    same_restarts && before == *after
}
