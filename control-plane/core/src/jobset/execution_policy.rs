//! `spec.executionPolicy` (KEP-672) as gates of the start-up graph.
//!
//! If `replicatedJobsStatus` is `Failed`, each replicatedJob waits for the one before it to fail.
//! Such a failure does not trigger the failure policy, and does not keep the JobSet from
//! completing. Once one of its Jobs has succeeded, not all can fail: then the later replicatedJobs
//! never run, and further failures are handled like any other.

use lockstep_api::{JobSet, ReplicatedJob, ReplicatedJobStatus, ReplicatedJobsStatus};

use crate::jobset::gate::{Gate, Milestone};

#[cfg(test)]
mod tests;

/// What a replicatedJob waits for: all before it in the list. An unknown status never lets it
/// start; validation refuses it.
pub(crate) fn gates<'a>(jobset: &'a JobSet, replicated_job: &ReplicatedJob) -> Vec<Gate<'a>> {
    let Some(status) = jobset.executes_in_order() else {
        return Vec::new();
    };
    let (known, until) = match status {
        ReplicatedJobsStatus::Succeeded => (true, Milestone::Complete),
        ReplicatedJobsStatus::Failed => (true, Milestone::Failed),
        ReplicatedJobsStatus::Active => (true, Milestone::Active),
        ReplicatedJobsStatus::Ready => (true, Milestone::Ready),
        ReplicatedJobsStatus::Other(_) => (false, Milestone::Complete),
    };
    before(jobset, &replicated_job.name)
        .map(|on| Gate {
            on: known.then_some(on),
            until,
            holds_while_suspended: true,
        })
        .collect()
}

fn before<'a>(jobset: &'a JobSet, name: &str) -> impl Iterator<Item = &'a ReplicatedJob> {
    let all = &jobset.spec.replicated_jobs;
    let index = all.iter().position(|job| job.name == name).unwrap_or(0);
    all.iter().take(index)
}

/// True if a failed Job of this replicatedJob is what the next one waits for.
pub(crate) fn awaits_failure(jobset: &JobSet, name: &str, counts: &[ReplicatedJobStatus]) -> bool {
    let mut after = jobset
        .spec
        .replicated_jobs
        .iter()
        .skip_while(|job| job.name != name)
        .skip(1);
    jobset.executes_in_order() == Some(ReplicatedJobsStatus::Failed)
        && after.any(|job| job.replicas() > 0)
        && !has_succeeded(name, counts)
}

/// True if the Jobs of this replicatedJob must succeed for the JobSet to complete.
pub(crate) fn must_succeed(jobset: &JobSet, name: &str, counts: &[ReplicatedJobStatus]) -> bool {
    if jobset.executes_in_order() != Some(ReplicatedJobsStatus::Failed) {
        return true;
    }
    let never_runs = before(jobset, name).any(|job| has_succeeded(&job.name, counts));
    !never_runs && !awaits_failure(jobset, name, counts)
}

fn has_succeeded(name: &str, counts: &[ReplicatedJobStatus]) -> bool {
    counts
        .iter()
        .any(|counts| counts.name == name && counts.succeeded > 0)
}
