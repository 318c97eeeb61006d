//! The execution policy excludes the other ways to order replicatedJobs.

use lockstep_api::{ExecutionPolicyOrder, JobSet, ReplicatedJobsStatus};

use super::Violation;
use crate::common::features::Features;

pub(super) fn validate(jobset: &JobSet, features: &Features, violations: &mut Vec<Violation>) {
    let Some(policy) = &jobset.spec.execution_policy else {
        return;
    };
    if let Some(ExecutionPolicyOrder::Other(order)) = &policy.execution_policy_order {
        violations.push(Violation::with_value(
            "spec.executionPolicy.executionPolicyOrder",
            order,
            format!("must be one of {}", ExecutionPolicyOrder::VALUES.join(", ")),
        ));
    }
    if let Some(ReplicatedJobsStatus::Other(status)) = &policy.replicated_jobs_status {
        violations.push(Violation::with_value(
            "spec.executionPolicy.replicatedJobsStatus",
            status,
            format!("must be one of {}", ReplicatedJobsStatus::VALUES.join(", ")),
        ));
    }
    if jobset.executes_in_order().is_none() {
        return;
    }
    if jobset.executes_in_order() == Some(ReplicatedJobsStatus::Failed)
        && features.in_place_restart
        && jobset.in_place()
    {
        violations.push(Violation::with_value(
            "spec.executionPolicy.replicatedJobsStatus",
            ReplicatedJobsStatus::Failed.as_str(),
            "Jobs that restart in place do not fail, so nothing can wait for their failure",
        ));
    }
    if jobset.starts_in_order() {
        violations.push(Violation::with_json(
            "spec.executionPolicy",
            policy,
            "ExecutionPolicy and StartupPolicy APIs are mutually exclusive",
        ));
    }
    if jobset
        .spec
        .replicated_jobs
        .iter()
        .any(|job| !job.depends_on.is_empty())
    {
        violations.push(Violation::with_json(
            "spec.executionPolicy",
            policy,
            "ExecutionPolicy and DependsOn APIs are mutually exclusive",
        ));
    }
}
