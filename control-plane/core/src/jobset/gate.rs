//! What a replicatedJob waits for before its Jobs start, and `replicatedJobs[].dependsOn` in these
//! terms.

use lockstep_api::{DependsOnStatus, JobSet, ReplicatedJob, ReplicatedJobStatus};

#[cfg(test)]
mod tests;

/// What must hold of another replicatedJob.
pub(crate) struct Gate<'a> {
    /// The other replicatedJob, if it exists.
    pub(crate) on: Option<&'a ReplicatedJob>,
    /// What it must have reached.
    pub(crate) until: Milestone,
    /// True if the gate holds Jobs back even while they would be created suspended.
    pub(crate) holds_while_suspended: bool,
}

/// What a replicatedJob can have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// Each of its Jobs is ready, has succeeded or has failed.
    Ready,
    /// Each of its Jobs has succeeded.
    Complete,
    /// Each of its Jobs has failed.
    Failed,
    /// Each of its Jobs has pods, or has succeeded or failed.
    Active,
}

impl Gate<'_> {
    pub(crate) fn is_open(&self, counts: &[ReplicatedJobStatus]) -> bool {
        self.on
            .is_some_and(|replicated_job| has_reached(replicated_job, self.until, counts))
    }
}

pub(crate) fn has_reached(
    replicated_job: &ReplicatedJob,
    milestone: Milestone,
    counts: &[ReplicatedJobStatus],
) -> bool {
    counts
        .iter()
        .find(|counts| counts.name == replicated_job.name)
        .is_some_and(|counts| {
            let ended = i64::from(counts.succeeded) + i64::from(counts.failed);
            let reached = match milestone {
                Milestone::Ready => i64::from(counts.ready) + ended,
                Milestone::Complete => i64::from(counts.succeeded),
                Milestone::Failed => i64::from(counts.failed),
                Milestone::Active => i64::from(counts.active) + ended,
            };
            reached == i64::from(replicated_job.replicas())
        })
}

/// The gates that `dependsOn` puts before a replicatedJob. A status or a replicatedJob that does
/// not exist never lets it start; validation refuses both.
pub(crate) fn of_depends_on<'a>(jobset: &'a JobSet, replicated_job: &'a ReplicatedJob) -> Vec<Gate<'a>> {
    let dependencies = replicated_job.depends_on.iter();
    dependencies
        .map(|dependency| {
            let (known, until) = match dependency.status {
                DependsOnStatus::Ready => (true, Milestone::Ready),
                DependsOnStatus::Complete => (true, Milestone::Complete),
                DependsOnStatus::Other(_) => (false, Milestone::Complete),
            };
            let on = jobset.replicated_job(&dependency.name).filter(|_| known);
            Gate {
                on,
                until,
                holds_while_suspended: true,
            }
        })
        .collect()
}
