//! When a JobSet has completed.

use lockstep_api::{JobSet, Operator, ReplicatedJobStatus, labels};

use crate::{
    children::{Children, label},
    execution_policy,
    jobset::total,
};

#[cfg(test)]
mod tests;

/// Whether enough of the Jobs that count have succeeded: all of them, or any one. Asked once some Job has.
pub(crate) fn is_met(jobset: &JobSet, children: &Children<'_>, states: &[ReplicatedJobStatus]) -> bool {
    let targets = jobset
        .spec
        .success_policy
        .as_ref()
        .map_or(&[][..], |policy| &policy.target_replicated_jobs);
    let counts =
        |replicated_job: &str| targets.is_empty() || targets.iter().any(|target| target == replicated_job);
    let succeeded = children
        .succeeded
        .iter()
        .filter(|job| label(job, labels::REPLICATED_JOB_NAME).is_some_and(counts))
        .count();
    match jobset.success_operator() {
        Operator::Any => succeeded >= 1,
        Operator::All | Operator::Other(_) => i64::try_from(succeeded).is_ok_and(|succeeded| {
            let must_succeed = |name: &str| execution_policy::must_succeed(jobset, name, states);
            succeeded >= total(jobset, |job| counts(&job.name) && must_succeed(&job.name))
        }),
    }
}
