//! What all Jobs of a JobSet have in common: their number, and their spec if they restart in place.

use lockstep_api::{JobSet, ReplicatedJob};

/// `backoffLimit` of Jobs that restart in place: the Job controller never gives up on them.
pub const IN_PLACE_BACKOFF_LIMIT: i32 = i32::MAX;
/// `podReplacementPolicy` of Jobs that restart in place: a pod is replaced when it has ended, never
/// beside it.
pub const IN_PLACE_POD_REPLACEMENT_POLICY: &str = "Failed";

/// How many Jobs the chosen replicatedJobs have.
pub(crate) fn total(jobset: &JobSet, chosen: impl Fn(&ReplicatedJob) -> bool) -> i64 {
    jobset
        .spec
        .replicated_jobs
        .iter()
        .filter(|job| chosen(job))
        .map(|job| i64::from(job.replicas()))
        .sum()
}

/// How many pods the chosen replicatedJobs have when they run.
pub(crate) fn total_pods(jobset: &JobSet, chosen: impl Fn(&ReplicatedJob) -> bool) -> i64 {
    let jobs = jobset.spec.replicated_jobs.iter().filter(|job| chosen(job));
    jobs.map(|job| {
        let parallelism = job.template.spec.as_ref().and_then(|spec| spec.parallelism);
        i64::from(job.replicas()) * i64::from(parallelism.unwrap_or(1))
    })
    .fold(0, i64::saturating_add)
}
