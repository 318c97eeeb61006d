//! What the status of a Job says.

use std::ops::RangeInclusive;

use k8s_openapi::api::batch::v1::Job;

#[cfg(test)]
mod tests;

pub(crate) fn has_condition(job: &Job, type_: &str) -> bool {
    let conditions = job.status.as_ref().and_then(|status| status.conditions.as_ref());
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}

/// The indexes whose work is done.
pub(crate) fn completed_indexes(job: &Job) -> Vec<RangeInclusive<u32>> {
    let status = job.status.as_ref();
    let text = status.and_then(|status| status.completed_indexes.as_deref());
    text.map(indexes).unwrap_or_default()
}

/// The indexes that were given up for good, by `backoffLimitPerIndex` or FailIndex.
pub(crate) fn failed_indexes(job: &Job) -> Vec<RangeInclusive<u32>> {
    let status = job.status.as_ref();
    let text = status.and_then(|status| status.failed_indexes.as_deref());
    text.map(indexes).unwrap_or_default()
}

/// Reads `Job.status.completedIndexes` or `failedIndexes`, such as `0,2-4`. What is malformed
/// counts as not there.
pub(crate) fn indexes(text: &str) -> Vec<RangeInclusive<u32>> {
    text.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        })
        .collect()
}
