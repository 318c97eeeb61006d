use lockstep_api::ReplicatedJobStatus;

use crate::{
    common::testing::{ReplicatedJobBuild, jobset, replicated_job},
    jobset::startup::Graph,
};

fn counts(name: &str, ready: i32, succeeded: i32, failed: i32) -> ReplicatedJobStatus {
    ReplicatedJobStatus {
        name: name.to_owned(),
        ready,
        succeeded,
        failed,
        ..ReplicatedJobStatus::default()
    }
}

/// True if `c`, which depends on `a` (2 Jobs) and `b` (1 Job), may start.
fn starts(a: &str, b: &str, status: &[ReplicatedJobStatus]) -> bool {
    let js = jobset([
        replicated_job("a", 2),
        replicated_job("b", 1),
        replicated_job("c", 1).depends_on("a", a).depends_on("b", b),
    ]);
    let graph = Graph::compile(&js);
    let stage = &graph.stages[2];
    // The gates also hold back suspended Jobs.
    assert_eq!(stage.may_be_created(true, status), stage.may_run(status));
    assert_eq!(stage.may_be_created(false, status), stage.may_run(status));
    stage.may_run(status)
}

#[test]
fn ready_counts_jobs_that_are_ready_succeeded_or_failed() {
    let b = counts("b", 1, 0, 0);
    assert!(!starts("Ready", "Ready", &[counts("a", 1, 0, 0), b.clone()]));
    assert!(starts("Ready", "Ready", &[counts("a", 2, 0, 0), b.clone()]));
    assert!(starts("Ready", "Ready", &[counts("a", 0, 1, 1), b.clone()]));
    assert!(!starts("Ready", "Ready", &[b]));
}

#[test]
fn complete_counts_only_succeeded_jobs() {
    let b = counts("b", 0, 1, 0);
    assert!(!starts(
        "Complete",
        "Complete",
        &[counts("a", 1, 1, 0), b.clone()]
    ));
    assert!(starts("Complete", "Complete", &[counts("a", 0, 2, 0), b.clone()]));
    assert!(starts("Ready", "Complete", &[counts("a", 2, 0, 0), b]));
    assert!(!starts(
        "Ready",
        "Complete",
        &[counts("a", 2, 0, 0), counts("b", 1, 0, 0)]
    ));
}

#[test]
fn an_unknown_dependency_never_lets_a_job_start() {
    assert!(!starts(
        "Dancing",
        "Ready",
        &[counts("a", 2, 0, 0), counts("b", 1, 0, 0)]
    ));
    let js = jobset([replicated_job("a", 1).depends_on("missing", "Ready")]);
    assert!(!Graph::compile(&js).stages[0].may_run(&[]));
}
