//! The ways to order replicatedJobs: `dependsOn`, and the execution policy, which excludes the
//! other ways.

use std::collections::BTreeSet;

use lockstep_api::{ExecutionPolicyOrder, JobSet, ReplicatedJob, ReplicatedJobsStatus};

use super::{Violation, path};
use crate::common::features::Features;

pub(super) fn execution_policy(jobset: &JobSet, features: &Features, violations: &mut Vec<Violation>) {
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

pub(super) fn depends_on(
    index: usize,
    replicated_job: &ReplicatedJob,
    earlier: &BTreeSet<&str>,
    violations: &mut Vec<Violation>,
) {
    if index == 0 && !replicated_job.depends_on.is_empty() {
        violations.push(Violation::internal(
            path(0, ".dependsOn"),
            "DependsOn can't be set for the first ReplicatedJob",
        ));
    }
    // Only earlier ones: this excludes itself and cycles.
    for dependency in replicated_job
        .depends_on
        .iter()
        .filter(|dependency| !earlier.contains(dependency.name.as_str()))
    {
        violations.push(Violation::internal(
            path(index, ".dependsOn"),
            format!(
                "replicatedJob: {} cannot depend on replicatedJob: {}",
                replicated_job.name, dependency.name
            ),
        ));
    }
}
