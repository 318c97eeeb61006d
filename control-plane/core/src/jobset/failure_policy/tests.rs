use lockstep_api::{FailurePolicyAction as Action, RestartStrategy};

use super::*;
use crate::common::testing::{Fate, JobSetBuild, child, failed, jobset, replicated_job, rule};

/// `a` failed at 20 with BackoffLimitExceeded, `b` at 10 with PodFailurePolicy.
fn decide_for(js: &JobSet, counted: i32) -> Option<Decision> {
    let a = failed(
        child(js, "a", 0, Fate::Ready),
        "BackoffLimitExceeded",
        "too many retries",
        20,
    );
    let b = failed(
        child(js, "b", 0, Fate::Ready),
        "PodFailurePolicy",
        "exit code 42",
        10,
    );
    decide(
        js,
        &Patterns::of(js),
        &[&a, &b],
        counted,
        &Features::default(),
        RecreationScope::SingleJob,
    )
}

fn js() -> JobSet {
    jobset([replicated_job("a", 1), replicated_job("b", 1)])
}

fn restarts(reason: &str, action: &str, job: &str) -> Option<Decision> {
    Some(Decision::Restart {
        counts_towards_max: action == "RestartJobSet",
        reason: reason.to_owned(),
        message: format!("applying {action} failure policy action (first failed job: {job})"),
        event: format!("{action}FailurePolicyAction"),
    })
}

#[test]
fn nothing_failed_nothing_decided() {
    assert_eq!(
        decide(
            &js(),
            &Patterns::default(),
            &[],
            0,
            &Features::default(),
            RecreationScope::SingleJob
        ),
        None
    );
    assert_eq!(
        decide(
            &js().restarting(RestartStrategy::Recreate, 1),
            &Patterns::default(),
            &[],
            0,
            &Features::default(),
            RecreationScope::SingleJob
        ),
        None
    );
}

#[test]
fn without_a_policy_the_first_failure_fails_the_set() {
    let message = "jobset failed due to one or more job failures (first failed job: js-b-0)".to_owned();
    assert_eq!(
        decide_for(&js(), 0),
        Some(Decision::Fail {
            reason: "FailedJobs",
            message
        })
    );
}

#[test]
fn without_a_matching_rule_the_set_is_restarted_until_max_restarts() {
    let js = js().restarting(RestartStrategy::Recreate, 2);
    assert_eq!(
        decide_for(&js, 0),
        restarts("DefaultFailurePolicy", "RestartJobSet", "js-b-0")
    );
    assert_eq!(
        decide_for(&js, 1),
        restarts("DefaultFailurePolicy", "RestartJobSet", "js-b-0")
    );
    let message =
        "jobset failed due to reaching max number of restarts (first failed job: js-b-0)".to_owned();
    assert_eq!(
        decide_for(&js, 2),
        Some(Decision::Fail {
            reason: "ReachedMaxRestarts",
            message
        })
    );
}

#[test]
fn the_first_matching_rule_decides_about_the_job_that_it_matches() {
    let base = js().restarting(RestartStrategy::Recreate, 0);
    let for_reason = |reason: &str, action| {
        let mut rule = rule("r", action);
        rule.on_job_failure_reasons = vec![reason.to_owned()];
        rule
    };
    let js = base
        .clone()
        .rule(for_reason("DeadlineExceeded", Action::FailJobSet))
        .rule(for_reason(
            "BackoffLimitExceeded",
            Action::RestartJobSetAndIgnoreMaxRestarts,
        ));
    let ignoring = restarts("FailurePolicy_r", "RestartJobSetAndIgnoreMaxRestarts", "js-a-0");
    assert_eq!(decide_for(&js, 9), ignoring);

    let js = base
        .clone()
        .rule(for_reason("PodFailurePolicy", Action::FailJobSet));
    let message = "applying FailJobSet failure policy action (first failed job: js-b-0)".to_owned();
    assert_eq!(
        decide_for(&js, 0),
        Some(Decision::Fail {
            reason: "FailJobSetFailurePolicyAction",
            message
        })
    );

    let mut targeted = rule("r", Action::RestartJobSetAndIgnoreMaxRestarts);
    targeted.target_replicated_jobs = vec!["a".to_owned()];
    assert_eq!(decide_for(&base.rule(targeted), 0), ignoring);
}

#[test]
fn patterns_match_anywhere_in_the_message_and_broken_ones_nowhere() {
    let with = |patterns: &[&str]| {
        let mut rule = rule("r", Action::RestartJobSetAndIgnoreMaxRestarts);
        rule.on_job_failure_message_patterns = patterns.iter().map(|pattern| (*pattern).to_owned()).collect();
        decide_for(&js().restarting(RestartStrategy::Recreate, 0).rule(rule), 0)
    };
    let matched = |job| restarts("FailurePolicy_r", "RestartJobSetAndIgnoreMaxRestarts", job);
    assert_eq!(with(&["code \\d+$"]), matched("js-b-0"));
    assert_eq!(with(&["(", "retries"]), matched("js-a-0"));
    assert!(matches!(
        with(&["("]),
        Some(Decision::Fail {
            reason: "ReachedMaxRestarts",
            ..
        })
    ));
}

#[test]
fn an_action_of_another_version_ends_the_set_with_its_name() {
    let js = js().rule(rule("r", Action::Other("Dance".to_owned())));
    let Some(Decision::Fail { reason, message }) = decide_for(&js, 0) else {
        panic!("fails")
    };
    assert_eq!(reason, INVALID_JOBSET);
    assert!(message.contains("Dance"), "{message}");
}
