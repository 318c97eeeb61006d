//! When a JobSet has completed.

use lockstep_api::{JobSet, Operator, ReplicatedJobStatus};

use crate::{jobset::execution_policy, jobset::jobs::total};

#[cfg(test)]
mod tests;

/// True if enough of the Jobs that count have succeeded: all of them, or any one. Called once some
/// Job has succeeded. `reached` counts a replicatedJob as succeeded once its gang minimum has;
/// `states` counts the Jobs as they are.
pub(crate) fn is_met(
    jobset: &JobSet,
    reached: &[ReplicatedJobStatus],
    states: &[ReplicatedJobStatus],
) -> bool {
    let targets = jobset
        .spec
        .success_policy
        .as_ref()
        .map_or(&[][..], |policy| &policy.target_replicated_jobs);
    let counts =
        |replicated_job: &str| targets.is_empty() || targets.iter().any(|target| target == replicated_job);
    let succeeded: i64 = reached
        .iter()
        .filter(|state| counts(&state.name))
        .map(|state| i64::from(state.succeeded))
        .sum();
    match jobset.success_operator() {
        Operator::Any => succeeded >= 1,
        Operator::All | Operator::Other(_) => {
            let must_succeed = |name: &str| execution_policy::must_succeed(jobset, name, states);
            succeeded >= total(jobset, |job| counts(&job.name) && must_succeed(&job.name))
        }
    }
}
