mod agent_pod;

use lockstep_api::RestartStrategy;

use super::*;
use crate::common::testing::{JobSetBuild, ReplicatedJobBuild, jobset, replicated_job};

/// Three pods with two allowed restarts.
fn js() -> JobSet {
    let two_pods = replicated_job("a", 1).job_spec(|spec| {
        spec.parallelism = Some(2);
        spec.completions = Some(2);
    });
    jobset([two_pods, replicated_job("b", 1)]).restarting(RestartStrategy::InPlaceRestart, 2)
}

fn at(attempt: i32) -> AgentPod {
    AgentPod {
        attempt: Some(attempt),
        ..AgentPod::default()
    }
}

fn silent() -> AgentPod {
    AgentPod::default()
}

fn judged(pods: &[AgentPod], change: impl FnOnce(&mut JobSetStatus)) -> Verdict {
    let js = js();
    let mut status = JobSetStatus::default();
    change(&mut status);
    judge(&js, &status, pods, |_| true)
}

#[test]
fn the_barrier_lifts_when_all_pods_report_the_same_attempt() {
    let none = |_: &mut JobSetStatus| {};
    assert_eq!(judged(&[], none), Verdict::Wait);
    assert_eq!(judged(&[at(0), at(0), silent()], none), Verdict::Wait);
    assert_eq!(judged(&[at(0), at(0), at(0)], none), Verdict::Current(0));
    let known = |status: &mut JobSetStatus| status.current_in_place_restart_attempt = Some(0);
    assert_eq!(judged(&[at(0), at(0), at(0)], known), Verdict::Wait);
    assert_eq!(judged(&[at(1), at(1), at(1)], known), Verdict::Current(1));
}

#[test]
fn pods_below_the_highest_attempt_are_to_restart_and_that_never_goes_back() {
    assert_eq!(judged(&[at(0), at(1), at(0)], |_| {}), Verdict::Previous(0));
    let known = |status: &mut JobSetStatus| status.previous_in_place_restart_attempt = Some(1);
    assert_eq!(judged(&[at(1), at(2), at(1)], known), Verdict::Wait);
    assert_eq!(judged(&[at(0), at(1), silent()], known), Verdict::Wait);
}

#[test]
fn more_restarts_than_allowed_end_it() {
    assert_eq!(judged(&[at(3), at(2), at(2)], |_| {}), Verdict::GiveUp);
    // Two restarts of the whole set did not count.
    let uncounted = |status: &mut JobSetStatus| status.restarts = 2;
    assert_eq!(judged(&[at(3), at(2), at(2)], uncounted), Verdict::Previous(2));
    let crashing = AgentPod {
        container_restarts: 3,
        ..silent()
    };
    assert_eq!(judged(&[crashing], |_| {}), Verdict::GiveUp);
}

#[test]
fn pods_that_have_ended_do_not_hold_the_others_up() {
    let failed = AgentPod {
        failed: true,
        ..at(0)
    };
    let done = AgentPod {
        succeeded: true,
        ..at(0)
    };
    assert_eq!(
        judged(&[failed, at(1), at(1), at(1)], |_| {}),
        Verdict::Current(1)
    );
    assert_eq!(judged(&[done, at(1), at(1)], |_| {}), Verdict::Current(1));
}

#[test]
fn replicated_jobs_without_jobs_are_not_waited_for() {
    let verdict = judge(&js(), &JobSetStatus::default(), &[at(0), at(0)], |job| {
        job.name == "a"
    });
    assert_eq!(verdict, Verdict::Current(0));
}
