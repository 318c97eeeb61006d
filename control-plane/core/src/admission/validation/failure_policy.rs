//! Rules of the failure policy.

use std::collections::BTreeMap;

use lockstep_api::{FailurePolicyRule, JobSet};

use super::{Violation, path, syntax};
use crate::common::features::Features;

/// The status has at most this many counts per replicatedJob.
const MOST_RESTARTED_REPLICAS: i32 = 1024;
const LONGEST_NAME: usize = 128;
const JOB_FAILURE_REASONS: [&str; 5] = [
    "BackoffLimitExceeded",
    "DeadlineExceeded",
    "FailedIndexes",
    "MaxFailedIndexesExceeded",
    "PodFailurePolicy",
];

pub(super) fn validate(jobset: &JobSet, features: &Features, violations: &mut Vec<Violation>) {
    let rules = jobset
        .spec
        .failure_policy
        .as_ref()
        .map_or(&[][..], |policy| &policy.rules);
    let restarts_one_job = |rule: &FailurePolicyRule| rule.action.restarts_one_job();
    if rules.iter().any(restarts_one_job) && !features.restart_job {
        violations.push(Violation::internal(
            "spec.failurePolicy.rules",
            "RestartJob and RestartJobAndIgnoreMaxRestarts failure policy actions are not allowed when RestartJob feature gate is \
             disabled",
        ));
        return;
    }
    if rules.iter().any(restarts_one_job)
        && let Some(index) = jobset
            .spec
            .replicated_jobs
            .iter()
            .position(|job| job.replicas() > MOST_RESTARTED_REPLICAS)
    {
        violations.push(Violation::internal(
            path(index, ".replicas"),
            format!(
                "JobSet cannot have a failure policy rule with RestartJob or RestartJobAndIgnoreMaxRestarts action and a replicated \
                 job with replicas > {MOST_RESTARTED_REPLICAS}"
            ),
        ));
    }
    let mut harmless = Vec::new();
    let mut by_name: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, rule) in rules.iter().enumerate() {
        // Rules of an object that was never defaulted have no names. They are identified by
        // position.
        if !rule.name.is_empty() {
            // The name becomes the reason of a condition, which the API server would refuse.
            name(index, &rule.name, violations);
            by_name.entry(&rule.name).or_default().push(index);
        }
        targets(jobset, index, rule, &mut harmless);
    }
    for (name, indices) in by_name.iter().filter(|(_, indices)| indices.len() > 1) {
        let indices: Vec<String> = indices.iter().map(usize::to_string).collect();
        harmless.push(Violation::internal(
            "spec.failurePolicy.rules",
            format!(
                "rule names are not unique, rules with indices [{}] all have the same name '{name}'",
                indices.join(" ")
            ),
        ));
    }
    // Targets that do not exist match nothing.
    violations.extend(harmless.into_iter().map(Violation::harmless));
}

fn name(index: usize, name: &str, violations: &mut Vec<Violation>) {
    let field = format!("spec.failurePolicy.rules[{index}].name");
    if name.len() > LONGEST_NAME {
        violations.push(Violation::internal(
            &field,
            format!(
                "invalid failure policy rule name of length {}, the rule name must be at least 1 characters long and at most \
                 {LONGEST_NAME} characters long",
                name.len()
            ),
        ));
    }
    if !syntax::is_rule_name(name) {
        violations.push(Violation::internal(
            &field,
            format!(
                "invalid failure policy rule name '{name}', a failure policy rule name must start with an alphabetic character, \
                 optionally followed by a string of alphanumeric characters or '_,:', and must end with an alphanumeric character or \
                 '_'"
            ),
        ));
    }
}

fn targets(jobset: &JobSet, index: usize, rule: &FailurePolicyRule, violations: &mut Vec<Violation>) {
    for target in rule
        .target_replicated_jobs
        .iter()
        .filter(|target| jobset.replicated_job(target).is_none())
    {
        violations.push(Violation::internal(
            format!("spec.failurePolicy.rules[{index}].targetReplicatedJobs"),
            format!("invalid replicatedJob name '{target}' in failure policy does not appear in .spec.ReplicatedJobs"),
        ));
    }
    for reason in rule
        .on_job_failure_reasons
        .iter()
        .filter(|reason| !JOB_FAILURE_REASONS.contains(&reason.as_str()))
    {
        violations.push(Violation::internal(
            format!("spec.failurePolicy.rules[{index}].onJobFailureReasons"),
            format!("invalid job failure reason '{reason}' in failure policy is not a recognized job failure reason"),
        ));
    }
}
