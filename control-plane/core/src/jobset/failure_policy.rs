//! Decides about failed Jobs.
//!
//! Rules are tried in order. The first one that matches a failed Job decides. Of the Jobs that it
//! matches, the first one to fail names the failure. If no rule matches, the JobSet restarts.
//! Without a policy it fails.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{
    FailurePolicy, FailurePolicyAction, FailurePolicyRule, JobSet,
    conditions::{messages, reasons},
    events, labels,
};

use crate::{
    common::features::Features,
    common::patterns::{Patterns, STEPS},
    common::syntax::is_rule_name,
    common::violation::INVALID_JOBSET,
    jobset::children::{failure, job_index, label},
};

#[cfg(test)]
mod tests;

/// What an answer to a failed Job may recreate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecreationScope {
    /// A single Job, if the policy says so.
    SingleJob,
    /// All Jobs, whatever the policy says.
    AllJobs,
}

/// The decision of the failure policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The JobSet has failed.
    Fail { reason: &'static str, message: String },
    /// All Jobs are recreated.
    Restart {
        /// True if this restart counts towards `maxRestarts`.
        counts_towards_max: bool,
        /// Reason of the `RestartingJobSet` condition.
        reason: String,
        /// The action, with the name of the Job that failed first; message of the condition and of
        /// the event.
        message: String,
        /// Reason of the event.
        event: String,
    },
    /// One Job is recreated, and the others run on.
    RestartJob {
        /// The replicatedJob that the Job belongs to.
        replicated_job: String,
        /// Its index there.
        index: usize,
        /// True if this restart counts towards `maxRestarts`.
        counts_towards_max: bool,
        /// The action, with the name of the Job; message of the event.
        message: String,
        /// Reason of the event.
        event: String,
    },
}

/// Decides about the failed Jobs. `None` if none has failed. `patterns` are the policy's, and
/// `counted_restarts` is how many count towards `maxRestarts` so far.
pub(crate) fn decide(
    jobset: &JobSet,
    patterns: &Patterns,
    failed: &[&Job],
    counted_restarts: i32,
    features: &Features,
    scope: RecreationScope,
) -> Option<Decision> {
    let Some(policy) = &jobset.spec.failure_policy else {
        let message = about(messages::FAILED_JOBS, first(failed)?);
        return Some(Decision::Fail {
            reason: reasons::FAILED_JOBS,
            message,
        });
    };
    let matched = first_matching(policy, patterns, failed);
    let (rule, job, action) = match matched {
        Some((rule, job)) => (Some(rule), job, &rule.action),
        None => (None, first(failed)?, &FailurePolicyAction::RestartJobSet),
    };
    let counts_towards_max = match action {
        FailurePolicyAction::FailJobSet => {
            let message = about(&events::failure_policy_action_message(action), job);
            return Some(Decision::Fail {
                reason: reasons::FAIL_JOBSET_ACTION,
                message,
            });
        }
        FailurePolicyAction::RestartJobSet => true,
        FailurePolicyAction::RestartJobSetAndIgnoreMaxRestarts => false,
        FailurePolicyAction::RestartJob if features.restart_job => true,
        FailurePolicyAction::RestartJobAndIgnoreMaxRestarts if features.restart_job => false,
        // Validation refuses it, so the object must be from another version.
        unknown => {
            let message = about(&format!("failure policy action {unknown} is not supported"), job);
            return Some(Decision::Fail {
                reason: INVALID_JOBSET,
                message,
            });
        }
    };
    if counts_towards_max && counted_restarts >= policy.max_restarts() {
        let message = about(messages::REACHED_MAX_RESTARTS, job);
        return Some(Decision::Fail {
            reason: reasons::REACHED_MAX_RESTARTS,
            message,
        });
    }
    let message = about(&events::failure_policy_action_message(action), job);
    let event = events::failure_policy_action_reason(action);
    if action.restarts_one_job()
        && scope == RecreationScope::SingleJob
        && let Some(index) = index_in(jobset, job)
    {
        return Some(Decision::RestartJob {
            replicated_job: label(job, labels::REPLICATED_JOB_NAME)
                .unwrap_or_default()
                .to_owned(),
            index,
            counts_towards_max,
            message,
            event,
        });
    }
    Some(Decision::Restart {
        counts_towards_max,
        reason: rule.filter(|rule| can_be_reason(&rule.name)).map_or_else(
            || reasons::DEFAULT_FAILURE_POLICY.to_owned(),
            |rule| format!("{}{}", reasons::FAILURE_POLICY_PREFIX, rule.name),
        ),
        message,
        event,
    })
}

/// The index of a Job that can be recreated by itself. `None` if its index is missing or invalid.
fn index_in(jobset: &JobSet, job: &Job) -> Option<usize> {
    let parent = label(job, labels::REPLICATED_JOB_NAME).and_then(|name| jobset.replicated_job(name));
    let replicas = usize::try_from(parent?.replicas()).ok()?;
    job_index(job).filter(|index| *index < replicas)
}

/// True if the API server accepts a rule's name as a part of a condition's reason. The JobSet may
/// have bypassed the webhook.
fn can_be_reason(name: &str) -> bool {
    name.is_empty() || is_rule_name(name)
}

fn about(message: &str, job: &Job) -> String {
    format!("{message} (first failed job: {})", name(job))
}

fn name(job: &Job) -> &str {
    job.metadata.name.as_deref().unwrap_or_default()
}

/// When a Job failed. A failure without a time comes before all others, as in upstream.
fn failed_at(job: &Job) -> Option<Timestamp> {
    let time = failure(job)?.last_transition_time.as_ref();
    Some(time.map_or(Timestamp::MIN, |time| time.0))
}

/// The Job that failed first.
fn first<'a>(failed: &[&'a Job]) -> Option<&'a Job> {
    let failed = failed.iter().filter_map(|job| Some((failed_at(job)?, *job)));
    failed.min_by_key(|(time, _)| *time).map(|(_, job)| job)
}

/// The first rule that matches a failed Job and, of the Jobs that it matches, the first to fail.
fn first_matching<'a>(
    policy: &'a FailurePolicy,
    patterns: &Patterns,
    failed: &[&'a Job],
) -> Option<(&'a FailurePolicyRule, &'a Job)> {
    let mut by_time: Vec<&Job> = failed.to_vec();
    by_time.sort_by_cached_key(|job| failed_at(job));
    let mut steps = STEPS;
    policy.rules.iter().enumerate().find_map(|(index, rule)| {
        let mut matching = by_time.iter().copied().filter(|job| is_about(rule, job));
        if rule.on_job_failure_message_patterns.is_empty() {
            return Some((rule, matching.next()?));
        }
        let matching: Vec<&Job> = matching.collect();
        let messages: Vec<&str> = matching.iter().map(|job| message(job)).collect();
        let place = patterns.first(index, &messages, &mut steps)?;
        Some((rule, *matching.get(place)?))
    })
}

/// True if a rule applies to a failed Job, whatever the message of the failure.
fn is_about(rule: &FailurePolicyRule, job: &Job) -> bool {
    let Some(condition) = failure(job) else {
        return false;
    };
    let reason = condition.reason.as_deref().unwrap_or_default();
    let parent = label(job, labels::REPLICATED_JOB_NAME).unwrap_or_default();
    let names = |stated: &[String], name: &str| stated.is_empty() || stated.iter().any(|one| one == name);
    !parent.is_empty()
        && names(&rule.on_job_failure_reasons, reason)
        && names(&rule.target_replicated_jobs, parent)
}

/// The message of a Job's failure.
fn message(job: &Job) -> &str {
    failure(job)
        .and_then(|condition| condition.message.as_deref())
        .unwrap_or_default()
}
