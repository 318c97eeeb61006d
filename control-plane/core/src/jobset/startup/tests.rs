use super::*;
use crate::{
    common::testing::{JobSetBuild, at, jobset, replicated_job},
    jobset::plan::Plan,
};

fn counts(name: &str, ready: i32) -> ReplicatedJobStatus {
    ReplicatedJobStatus {
        name: name.to_owned(),
        ready,
        ..ReplicatedJobStatus::default()
    }
}

fn runnable(jobset: &JobSet, counts: &[ReplicatedJobStatus]) -> Vec<bool> {
    Graph::compile(jobset)
        .stages
        .iter()
        .map(|stage| stage.may_run(counts))
        .collect()
}

#[test]
fn any_order_starts_everything() {
    let js = jobset([replicated_job("a", 1), replicated_job("b", 1)]);
    assert_eq!(runnable(&js, &[counts("a", 0), counts("b", 0)]), [true, true]);
    assert!(!is_in_progress(&js, &[]));
}

#[test]
fn in_order_starts_each_when_all_before_are_ready() {
    let js = jobset([
        replicated_job("a", 1),
        replicated_job("b", 2),
        replicated_job("c", 1),
    ])
    .in_order();
    let at = |a, b| [counts("a", a), counts("b", b), counts("c", 0)];
    assert_eq!(runnable(&js, &at(0, 0)), [true, false, false]);
    assert_eq!(runnable(&js, &at(1, 1)), [true, true, false]);
    assert_eq!(runnable(&js, &at(1, 2)), [true, true, true]);
    assert_eq!(runnable(&js, &at(0, 2)), [true, false, false]);
    assert!(is_in_progress(&js, &at(1, 2)));
}

#[test]
fn a_suspended_set_in_order_creates_everything() {
    let js = jobset([replicated_job("a", 1), replicated_job("b", 1)]).in_order();
    let graph = Graph::compile(&js);
    let counts = [counts("a", 0), counts("b", 0)];
    assert!(graph.stages[1].may_be_created(true, &counts));
    assert!(!graph.stages[1].may_be_created(false, &counts));
}

#[test]
fn progress_and_completion_exclude_each_other() {
    let js = jobset([replicated_job("a", 1)]).in_order().status(|_| {});
    let report_on = |js: &JobSet, ready| {
        let mut plan = Plan::default();
        let mut draft = Draft::new(js.status.as_ref().unwrap(), at(0));
        report(js, &[counts("a", ready)], &mut draft);
        draft.finish(&mut plan);
        plan.status.map(|status| {
            let conditions = status.conditions.iter();
            (
                conditions
                    .map(|c| format!("{}={}", c.type_, c.status))
                    .collect::<Vec<_>>(),
                *status,
            )
        })
    };
    let (conditions, status) = report_on(&js, 0).unwrap();
    assert_eq!(conditions, ["StartupPolicyInProgress=True"]);
    let js = js.with(|js| js.status = Some(status));
    assert_eq!(report_on(&js, 0), None);
    let (conditions, _) = report_on(&js, 1).unwrap();
    assert_eq!(
        conditions,
        ["StartupPolicyInProgress=False", "StartupPolicyCompleted=True"]
    );
    assert_eq!(report_on(&js.suspended(true), 1), None);
}
