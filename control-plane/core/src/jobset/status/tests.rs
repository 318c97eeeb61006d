use super::*;
use crate::common::testing::{
    Fate, JobSetBuild, ReplicatedJobBuild, at, child, jobset, observe, replicated_job,
};

fn failed(status: bool, reason: &'static str) -> NewCondition<'static> {
    NewCondition {
        severity: Severity::Warning,
        type_: conditions::FAILED,
        status,
        reason,
        message: "m",
    }
}

fn set(before: &JobSetStatus, now: i64, condition: &NewCondition<'_>) -> Plan {
    let mut plan = Plan::default();
    let mut draft = Draft::new(before, at(now));
    draft.set_condition(condition);
    draft.finish(&mut plan);
    plan
}

#[test]
fn a_condition_is_added_when_true_and_announced_once() {
    let before = JobSetStatus::default();
    assert_eq!(set(&before, 0, &failed(false, "A")), Plan::default());
    let plan = set(&before, 0, &failed(true, "A"));
    let after = *plan.status.unwrap();
    assert_eq!(
        plan.events,
        [Event {
            severity: Severity::Warning,
            reason: "A".to_owned(),
            message: "m".to_owned()
        }]
    );
    assert_eq!(set(&after, 1, &failed(true, "A")), Plan::default());
}

#[test]
fn the_transition_time_is_that_of_the_last_change_of_status() {
    let first = *set(&JobSetStatus::default(), 0, &failed(true, "A"))
        .status
        .unwrap();
    let reworded = *set(&first, 5, &failed(true, "B")).status.unwrap();
    assert_eq!(reworded.conditions[0].reason, "B");
    assert_eq!(reworded.conditions[0].last_transition_time, Time(at(0)));
    let ended = *set(&reworded, 9, &failed(false, "C")).status.unwrap();
    assert_eq!(ended.conditions[0].status, "False");
    assert_eq!(ended.conditions[0].last_transition_time, Time(at(9)));
}

#[test]
fn the_end_is_reported_once() {
    let mut plan = Plan::default();
    let before = JobSetStatus::default();
    let mut draft = Draft::new(&before, at(0));
    draft.complete();
    draft.finish(&mut plan);
    assert_eq!(plan.finished, Some(TerminalState::Completed));
    let before = *plan.status.unwrap();
    let mut plan = Plan::default();
    let mut draft = Draft::new(&before, at(1));
    draft.status.restarts = 9;
    draft.complete();
    draft.finish(&mut plan);
    assert_eq!((plan.status.is_some(), plan.finished), (true, None));
}

#[test]
fn jobs_are_counted_by_replicated_job_in_descending_order() {
    let wide = replicated_job("b", 3).job_spec(|spec| {
        spec.parallelism = Some(4);
        spec.completions = Some(2);
    });
    let js = jobset([replicated_job("a", 2), wide]);
    let mut enough = child(&js, "b", 0, Fate::Running);
    let status = enough.status.as_mut().unwrap();
    (status.ready, status.succeeded) = (Some(1), Some(1));
    let mut suspended = child(&js, "b", 1, Fate::Pending);
    suspended.spec.as_mut().unwrap().suspend = Some(true);
    let jobs = [
        child(&js, "a", 0, Fate::Succeeded),
        child(&js, "a", 1, Fate::Failed),
        enough,
        suspended,
    ];
    let observed = observe(&js, jobs);
    let status = |name: &str, ready, succeeded, failed, active, suspended| ReplicatedJobStatus {
        name: name.to_owned(),
        ready,
        succeeded,
        failed,
        active,
        suspended,
        ..ReplicatedJobStatus::default()
    };
    let counts = replicated_jobs(
        &js,
        &Children::sort(&observed.jobset, &observed.jobs, observed.features),
        &Features::default(),
    );
    assert_eq!(counts, [status("b", 1, 0, 0, 1, 1), status("a", 0, 1, 1, 0, 0)]);
    assert!(!all_ready(&js, &counts));
    assert!(all_ready(
        &js,
        &[status("a", 1, 1, 0, 1, 0), status("b", 3, 0, 0, 3, 0)]
    ));
}

#[test]
fn counts_of_single_restarts_are_kept_while_the_gate_is_on() {
    let js = jobset([replicated_job("a", 1)]).status(|status| {
        status.replicated_jobs_status.push(ReplicatedJobStatus {
            name: "a".to_owned(),
            job_restarts: vec![2],
            job_restarts_count_towards_max: vec![1],
            ..ReplicatedJobStatus::default()
        });
    });
    let counts = |restart_job| {
        let features = Features {
            restart_job,
            ..Features::default()
        };
        replicated_jobs(&js, &Children::default(), &features).remove(0)
    };
    let on = counts(true);
    assert_eq!(
        (on.job_restarts, on.job_restarts_count_towards_max),
        (vec![2], vec![1])
    );
    let off = counts(false);
    assert!(off.job_restarts.is_empty() && off.job_restarts_count_towards_max.is_empty());
}
