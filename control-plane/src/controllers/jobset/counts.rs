//! Holds back statuses that differ from the current one only in counts of Jobs, so that many
//! changes of many Jobs cause few writes.
//!
//! Promises: such a status is written at most [`HELD`] after it was first wanted. Any other status
//! (a condition, a restart, an end, an event) is written at once, with the current counts. No
//! decision depends on these counts, so none is delayed.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use kube::runtime::reflector::ObjectRef;
use lockstep_api::{JobSet, JobSetStatus, ReplicatedJobStatus};
use lockstep_core::Plan;
use tokio::time::Instant;

/// How long counts may be out of date.
pub(super) const HELD: Duration = Duration::from_millis(200);

/// Since when the status of a JobSet has had outdated counts.
#[derive(Default)]
pub(super) struct Counts {
    since: Mutex<HashMap<ObjectRef<JobSet>, Instant>>,
}

impl Counts {
    fn locked(&self) -> MutexGuard<'_, HashMap<ObjectRef<JobSet>, Instant>> {
        self.since.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the status from the plan if it has to wait. Returns for how long.
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

    /// Forgets a JobSet that is gone.
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
    // Restarts of single Jobs are more than counts: decisions depend on them.
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
    // This is also more than a count, but a Job that is removed stays visible until this is
    // written.
    before.completed_jobs.clone_from(&after.completed_jobs);
    same_restarts && before == *after
}

#[cfg(test)]
mod tests {
    use lockstep_api::TerminalState;
    use lockstep_core::jobset::plan::{Event, Severity};

    use super::*;

    fn counted(active: i32) -> JobSetStatus {
        JobSetStatus {
            replicated_jobs_status: vec![ReplicatedJobStatus {
                name: "workers".to_owned(),
                active,
                ..ReplicatedJobStatus::default()
            }],
            ..JobSetStatus::default()
        }
    }

    fn plan(status: JobSetStatus) -> Plan {
        Plan {
            status: Some(Box::new(status)),
            ..Plan::default()
        }
    }

    fn jobset(status: Option<JobSetStatus>) -> JobSet {
        JobSet {
            status,
            ..JobSet::default()
        }
    }

    fn key() -> ObjectRef<JobSet> {
        ObjectRef::new("js").within("ns")
    }

    #[tokio::test(start_paused = true)]
    async fn counts_wait_for_more_of_them_but_not_for_long() {
        let (counts, jobset) = (Counts::default(), jobset(None));
        let mut first = plan(counted(1));
        assert_eq!(counts.hold_back(&key(), &jobset, &mut first), Some(HELD));
        assert!(first.is_empty());

        tokio::time::advance(HELD / 2).await;
        let mut second = plan(counted(2));
        assert_eq!(counts.hold_back(&key(), &jobset, &mut second), Some(HELD / 2));

        tokio::time::advance(HELD / 2).await;
        let mut third = plan(counted(4));
        assert_eq!(counts.hold_back(&key(), &jobset, &mut third), None);
        assert_eq!(third, plan(counted(4)));

        // A later change waits again.
        let mut later = plan(counted(3));
        assert_eq!(counts.hold_back(&key(), &jobset, &mut later), Some(HELD));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_more_than_counts_is_written_at_once_and_takes_them_along() {
        let before = counted(1);
        let restarted = JobSetStatus {
            restarts: 1,
            ..counted(0)
        };
        let mut job_restarted = counted(0);
        job_restarted.replicated_jobs_status[0].job_restarts = vec![1];
        let event = Event {
            severity: Severity::Normal,
            reason: "News".to_owned(),
            message: String::new(),
        };
        let with_event = Plan {
            events: vec![event],
            ..plan(counted(0))
        };
        let finished = Plan {
            finished: Some(TerminalState::Failed),
            ..plan(counted(0))
        };
        for whole in [plan(restarted), plan(job_restarted), with_event, finished] {
            let (counts, jobset) = (Counts::default(), jobset(Some(before.clone())));
            counts.hold_back(&key(), &jobset, &mut plan(counted(0)));
            let mut kept = whole.clone();
            assert_eq!(counts.hold_back(&key(), &jobset, &mut kept), None, "{whole:?}");
            assert_eq!(kept, whole);
            // The wait starts from zero again.
            let again = counts.hold_back(&key(), &jobset, &mut plan(counted(0)));
            assert_eq!(again, Some(HELD));
        }
    }
}
