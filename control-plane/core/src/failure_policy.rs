//! What is to be done about failed Jobs.
//!
//! Rules are tried in order; the first that matches a failed Job decides, and of the Jobs it matches the one that failed first names
//! the failure. Where no rule matches, the set is restarted. Where there is no policy at all, it has failed.

use jiff::Timestamp;
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{
    FailurePolicyAction, FailurePolicyRule, JobSet,
    conditions::{messages, reasons},
    events, labels,
};
use regex::Regex;

use crate::{
    children::{failure, job_index, label},
    features::Features,
    go_regex,
    validation::{self, INVALID_JOBSET},
};

#[cfg(test)]
mod tests;

/// What the failure policy says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// The JobSet has failed.
    Fail { reason: &'static str, message: String },
    /// All Jobs are made anew.
    Restart {
        /// Whether this restart counts towards `maxRestarts`.
        counts: bool,
        /// Reason of the `RestartingJobSet` condition.
        reason: String,
        /// What is done, with the name of the Job that failed first; message of the condition and of the event.
        message: String,
        /// Reason of the event.
        event: String,
    },
    /// One Job is made anew, the others run on.
    RestartJob {
        /// The replicatedJob that the Job belongs to.
        replicated_job: String,
        /// Its index there.
        index: usize,
        /// Whether this restart counts towards `maxRestarts`.
        counts: bool,
        /// What is done, with the name of the Job; message of the event.
        message: String,
        /// Reason of the event.
        event: String,
    },
}

/// Decides about the failed Jobs; `None` where none has failed. `counted` is how many restarts count towards `maxRestarts` so far.
/// Where all Jobs restart `together` none is made anew alone.
pub(crate) fn decide(
    jobset: &JobSet,
    failed: &[&Job],
    counted: i32,
    features: &Features,
    together: bool,
) -> Option<Decision> {
    let Some(policy) = &jobset.spec.failure_policy else {
        let message = about(messages::FAILED_JOBS, first(failed)?);
        return Some(Decision::Fail {
            reason: reasons::FAILED_JOBS,
            message,
        });
    };
    let matched = policy
        .rules
        .iter()
        .find_map(|rule| Some((rule, first_matching(rule, failed)?)));
    let (rule, job, action) = match matched {
        Some((rule, job)) => (Some(rule), job, &rule.action),
        None => (None, first(failed)?, &FailurePolicyAction::RestartJobSet),
    };
    let single = matches!(
        action,
        FailurePolicyAction::RestartJob | FailurePolicyAction::RestartJobAndIgnoreMaxRestarts
    );
    let counts = match action {
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
        // Refused by validation; here it can only be an object that started under another version.
        unknown => {
            let message = about(&format!("failure policy action {unknown} is not supported"), job);
            return Some(Decision::Fail {
                reason: INVALID_JOBSET,
                message,
            });
        }
    };
    if counts && counted >= policy.max_restarts() {
        let message = about(messages::REACHED_MAX_RESTARTS, job);
        return Some(Decision::Fail {
            reason: reasons::REACHED_MAX_RESTARTS,
            message,
        });
    }
    let message = about(&events::failure_policy_action_message(action), job);
    let event = events::failure_policy_action_reason(action);
    // A Job that has lost its index, or has one that cannot be, cannot be made anew alone.
    let known = |index: &usize| {
        let parent = label(job, labels::REPLICATED_JOB_NAME).and_then(|name| jobset.replicated_job(name));
        let replicas = parent.map_or(0, |parent| parent.replicas());
        usize::try_from(replicas).is_ok_and(|replicas| *index < replicas)
    };
    if let Some(index) = job_index(job).filter(|index| single && !together && known(index)) {
        return Some(Decision::RestartJob {
            replicated_job: label(job, labels::REPLICATED_JOB_NAME)
                .unwrap_or_default()
                .to_owned(),
            index,
            counts,
            message,
            event,
        });
    }
    Some(Decision::Restart {
        counts,
        reason: rule.filter(|rule| can_be_reason(&rule.name)).map_or_else(
            || reasons::DEFAULT_FAILURE_POLICY.to_owned(),
            |rule| format!("{}{}", reasons::FAILURE_POLICY_PREFIX, rule.name),
        ),
        message,
        event,
    })
}

/// Whether the API server takes a rule's name as part of a condition's reason: no webhook may have seen it.
fn can_be_reason(name: &str) -> bool {
    name.is_empty() || validation::is_rule_name(name)
}

fn about(message: &str, job: &Job) -> String {
    format!("{message} (first failed job: {})", name(job))
}

fn name(job: &Job) -> &str {
    job.metadata.name.as_deref().unwrap_or_default()
}

/// The Job that failed first. A failure without a time comes before all others, as with upstream.
fn first<'a>(failed: &[&'a Job]) -> Option<&'a Job> {
    let failed = failed
        .iter()
        .filter_map(|job| Some((failure(job)?.last_transition_time.as_ref(), *job)));
    failed
        .min_by_key(|(time, _)| time.map_or(Timestamp::MIN, |time| time.0))
        .map(|(_, job)| job)
}

fn first_matching<'a>(rule: &FailurePolicyRule, failed: &[&'a Job]) -> Option<&'a Job> {
    // A pattern that is not a regular expression matches nothing.
    let patterns: Vec<Regex> = rule
        .on_job_failure_message_patterns
        .iter()
        .filter_map(|pattern| go_regex::compile(pattern))
        .collect();
    let matches = |job: &Job| {
        let Some(condition) = failure(job) else {
            return false;
        };
        let reason = condition.reason.as_deref().unwrap_or_default();
        let message = condition.message.as_deref().unwrap_or_default();
        let parent = label(job, labels::REPLICATED_JOB_NAME).unwrap_or_default();
        !parent.is_empty()
            && (rule.on_job_failure_reasons.is_empty()
                || rule.on_job_failure_reasons.iter().any(|r| r == reason))
            && (rule.on_job_failure_message_patterns.is_empty()
                || patterns.iter().any(|p| p.is_match(message)))
            && (rule.target_replicated_jobs.is_empty()
                || rule.target_replicated_jobs.iter().any(|t| t == parent))
    };
    let matching: Vec<&Job> = failed.iter().copied().filter(|job| matches(job)).collect();
    first(&matching)
}
