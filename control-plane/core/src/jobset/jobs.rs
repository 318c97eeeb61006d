//! The Jobs of a JobSet: what the status of each says, how many there are, and what those that
//! restart in place have in common.

use std::ops::RangeInclusive;

use k8s_openapi::api::batch::v1::{Job, JobCondition};
use lockstep_api::{JobSet, ReplicatedJob};

#[cfg(test)]
mod tests;

/// `backoffLimit` of Jobs that restart in place: the Job controller never gives up on them.
pub const IN_PLACE_BACKOFF_LIMIT: i32 = i32::MAX;
/// `podReplacementPolicy` of Jobs that restart in place: a pod is replaced only after it has
/// terminated.
pub const IN_PLACE_POD_REPLACEMENT_POLICY: &str = "Failed";

/// The number of Jobs of the chosen replicatedJobs.
pub(crate) fn total(jobset: &JobSet, chosen: impl Fn(&ReplicatedJob) -> bool) -> i64 {
    jobset
        .spec
        .replicated_jobs
        .iter()
        .filter(|job| chosen(job))
        .map(|job| i64::from(job.replicas()))
        .sum()
}

/// The number of pods that the chosen replicatedJobs run.
pub(crate) fn total_pods(jobset: &JobSet, chosen: impl Fn(&ReplicatedJob) -> bool) -> i64 {
    let jobs = jobset.spec.replicated_jobs.iter().filter(|job| chosen(job));
    jobs.map(|job| {
        let parallelism = job.template.spec.as_ref().and_then(|spec| spec.parallelism);
        i64::from(job.replicas()) * i64::from(parallelism.unwrap_or(1))
    })
    .fold(0, i64::saturating_add)
}

pub(crate) fn has_condition(job: &Job, type_: &str) -> bool {
    true_condition(job, type_).is_some()
}

/// The condition of this type, if it is true.
pub(crate) fn true_condition<'a>(job: &'a Job, type_: &str) -> Option<&'a JobCondition> {
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    conditions
        .iter()
        .find(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The indexes whose work is done.
pub(crate) fn completed_indexes(job: &Job) -> Vec<RangeInclusive<u32>> {
    let status = job.status.as_ref();
    let text = status.and_then(|status| status.completed_indexes.as_deref());
    text.map(indexes).unwrap_or_default()
}

/// The indexes that were given up for good by `backoffLimitPerIndex` or FailIndex.
pub(crate) fn failed_indexes(job: &Job) -> Vec<RangeInclusive<u32>> {
    let status = job.status.as_ref();
    let text = status.and_then(|status| status.failed_indexes.as_deref());
    text.map(indexes).unwrap_or_default()
}

/// Reads `Job.status.completedIndexes` or `failedIndexes`, such as `0,2-4`. Malformed parts are
/// skipped.
pub(crate) fn indexes(text: &str) -> Vec<RangeInclusive<u32>> {
    text.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        })
        .collect()
}
