use lockstep_api::{ExecutionPolicy, ExecutionPolicyOrder, TerminalState};

use crate::{
    common::testing::{Cluster, Fate, JobSetBuild, jobset, replicated_job},
    jobset::plan::Plan,
};
use lockstep_api::{JobSet, RestartStrategy};

fn in_order(status: &str) -> JobSet {
    jobset([
        replicated_job("a", 2),
        replicated_job("b", 1),
        replicated_job("c", 1),
    ])
    .with(|js| {
        js.spec.execution_policy = Some(ExecutionPolicy {
            execution_policy_order: Some(ExecutionPolicyOrder::InOrder),
            replicated_jobs_status: (!status.is_empty()).then(|| status.into()),
        });
    })
}

fn report(cluster: &mut Cluster, jobs: &[&str], fate: Fate) {
    for job in jobs {
        cluster.report(job, fate);
    }
    cluster.settle();
}

fn started(js: JobSet) -> Cluster {
    let mut cluster = Cluster::new(js);
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-a-0", "js-a-1"]);
    cluster
}

const A: [&str; 2] = ["js-a-0", "js-a-1"];
const AB: [&str; 3] = ["js-a-0", "js-a-1", "js-b-0"];
const ABC: [&str; 4] = ["js-a-0", "js-a-1", "js-b-0", "js-c-0"];

#[test]
fn any_order_runs_all_at_once() {
    let js = in_order("Succeeded").with(|js| {
        js.spec.execution_policy.as_mut().unwrap().execution_policy_order = None;
    });
    let mut cluster = Cluster::new(js);
    cluster.settle();
    assert_eq!(cluster.job_names(), ABC);
}

#[test]
fn each_runs_when_all_jobs_before_have_succeeded_which_is_the_default() {
    for status in ["Succeeded", ""] {
        let mut cluster = started(in_order(status));
        report(&mut cluster, &A, Fate::Ready);
        report(&mut cluster, &A[..1], Fate::Succeeded);
        assert_eq!(cluster.job_names(), A);
        report(&mut cluster, &A, Fate::Succeeded);
        assert_eq!(cluster.job_names(), AB);
        report(&mut cluster, &AB, Fate::Succeeded);
        assert_eq!(cluster.job_names(), ABC);
        assert!(!cluster.jobset.is_finished());
        report(&mut cluster, &ABC, Fate::Succeeded);
        assert_eq!(ended(&cluster), Some(TerminalState::Completed));
    }
}

#[test]
fn active_and_ready_stay_reached_when_jobs_go_on() {
    let mut cluster = started(in_order("Active"));
    report(&mut cluster, &A, Fate::Running);
    assert_eq!(cluster.job_names(), AB);
    report(&mut cluster, &A, Fate::Succeeded);
    report(&mut cluster, &AB, Fate::Running);
    assert_eq!(cluster.job_names(), ABC);

    let mut cluster = started(in_order("Ready"));
    report(&mut cluster, &A, Fate::Running);
    assert_eq!(cluster.job_names(), A);
    report(&mut cluster, &A, Fate::Ready);
    assert_eq!(cluster.job_names(), AB);
}

#[test]
fn failures_that_the_order_waits_for_are_not_the_failure_policys() {
    let mut cluster = started(in_order("Failed"));
    report(&mut cluster, &A[..1], Fate::Failed);
    assert_eq!((cluster.job_names(), ended(&cluster)), (A.to_vec(), None));
    report(&mut cluster, &A, Fate::Failed);
    assert_eq!(cluster.job_names(), AB);
    report(&mut cluster, &AB, Fate::Failed);
    assert_eq!((cluster.job_names(), ended(&cluster)), (ABC.to_vec(), None));
    let mut failing = cluster.clone();
    report(&mut cluster, &ABC, Fate::Succeeded);
    assert_eq!(ended(&cluster), Some(TerminalState::Completed));
    // Nothing waits for the failure of the last one.
    report(&mut failing, &ABC, Fate::Failed);
    assert_eq!(ended(&failing), Some(TerminalState::Failed));
}

#[test]
fn where_failure_is_waited_for_and_does_not_come_the_rest_is_not_needed() {
    let mut cluster = started(in_order("Failed"));
    report(&mut cluster, &A, Fate::Succeeded);
    assert_eq!(
        (cluster.job_names(), ended(&cluster)),
        (A.to_vec(), Some(TerminalState::Completed))
    );

    let mut cluster = started(in_order("Failed"));
    report(&mut cluster, &A[..1], Fate::Failed);
    report(&mut cluster, &A[1..], Fate::Succeeded);
    assert_eq!(ended(&cluster), Some(TerminalState::Failed));
}

fn ended(cluster: &Cluster) -> Option<TerminalState> {
    cluster.jobset.status.as_ref()?.terminal_state.clone()
}

#[test]
fn a_suspended_set_creates_what_may_run_and_goes_on_when_it_is_resumed() {
    let mut cluster = started(in_order("Succeeded").suspended(true));
    cluster.jobset.spec.suspend = Some(false);
    cluster.settle();
    report(&mut cluster, &A, Fate::Succeeded);
    assert_eq!(cluster.job_names(), AB);
    cluster.jobset.spec.suspend = Some(true);
    cluster.settle();
    assert_eq!(cluster.job_names(), AB);
    cluster.jobset.spec.suspend = Some(false);
    cluster.settle();
    report(&mut cluster, &AB, Fate::Succeeded);
    assert_eq!(cluster.job_names(), ABC);
}

#[test]
fn a_restart_begins_with_the_first() {
    let mut cluster = started(in_order("Succeeded").restarting(RestartStrategy::Recreate, 1));
    report(&mut cluster, &A, Fate::Succeeded);
    report(&mut cluster, &AB, Fate::Ready);
    report(&mut cluster, &AB, Fate::Failed);
    assert_eq!(cluster.job_names(), A);
    assert_eq!(cluster.jobset.restart_attempt(), 1);
    report(&mut cluster, &A, Fate::Succeeded);
    assert_eq!(cluster.job_names(), AB);
    assert_eq!(cluster.reconcile(), Plan::default());
}
