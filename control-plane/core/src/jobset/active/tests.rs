use k8s_openapi::api::batch::v1::Job;
use lockstep_api::annotations::EXECUTION_ATTEMPT;
use lockstep_api::{InPlacePhase, JobSet, RestartStrategy, TerminalState};

use super::*;
use crate::common::testing::{Cluster, Fate, JobSetBuild, at, jobset, replicated_job};

fn cluster(jobset: JobSet) -> Cluster {
    let mut cluster = Cluster::new(jobset);
    cluster.features.active_deadline = true;
    cluster.features.execution_attempts = true;
    cluster
}

fn two() -> JobSet {
    jobset([replicated_job("a", 2)])
}

fn limited(seconds: i64) -> JobSet {
    two().with(|js| js.spec.active_deadline_seconds = Some(seconds))
}

fn status(cluster: &Cluster) -> &JobSetStatus {
    cluster.jobset.status.as_ref().unwrap()
}

fn start(cluster: &Cluster) -> Option<jiff::Timestamp> {
    status(cluster).start_time.as_ref().map(|time| time.0)
}

fn suspend(cluster: &mut Cluster, suspended: bool) {
    cluster.jobset.spec.suspend = Some(suspended);
    cluster.settle();
}

/// The execution attempts that the pods of all Jobs are marked with.
fn marks(cluster: &Cluster) -> Vec<String> {
    let mark = |job: &Job| {
        let meta = job.spec.as_ref()?.template.metadata.as_ref()?;
        meta.annotations.as_ref()?.get(EXECUTION_ATTEMPT).cloned()
    };
    let marks = cluster.jobs.values().map(mark);
    marks.map(Option::unwrap_or_default).collect()
}

#[test]
fn a_jobset_that_is_active_for_too_long_fails_and_its_jobs_are_deleted() {
    let mut cluster = cluster(limited(60).restarting(RestartStrategy::Recreate, 9));
    cluster.settle();
    let began = start(&cluster).unwrap();
    let left = cluster.reconcile().requeue_after.unwrap();
    assert!(left.is_positive() && left.as_secs() < 60, "{left}");
    cluster.now = began + SignedDuration::from_secs(59);
    assert!(cluster.reconcile().is_empty());
    cluster.now = began + SignedDuration::from_secs(60);
    // The deadline is looked at before the failure policy.
    cluster.report("js-a-0", Fate::Failed);
    assert_eq!(cluster.reconcile().finished, Some(TerminalState::Failed));
    let failed = status(&cluster).condition(conditions::FAILED).unwrap();
    assert_eq!(failed.reason, "DeadlineExceeded");
    assert_eq!(
        failed.message,
        "jobset was active longer than its activeDeadlineSeconds (60)"
    );
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-a-0"]);
}

#[test]
fn a_jobset_that_has_succeeded_is_not_failed_by_its_deadline() {
    let mut cluster = cluster(limited(60));
    cluster.settle();
    cluster.report("js-a-0", Fate::Succeeded);
    cluster.report("js-a-1", Fate::Succeeded);
    cluster.now = at(1000);
    assert_eq!(cluster.reconcile().finished, Some(TerminalState::Completed));
}

#[test]
fn the_deadline_does_not_run_while_suspended_and_begins_anew_afterwards() {
    let mut cluster = cluster(limited(60).suspended(true));
    cluster.settle();
    assert_eq!(start(&cluster), None);
    cluster.now = at(100);
    suspend(&mut cluster, false);
    let first = start(&cluster).unwrap();
    assert!(first >= at(100));
    suspend(&mut cluster, true);
    assert_eq!(start(&cluster), None);
    cluster.now = at(500);
    suspend(&mut cluster, false);
    assert!(start(&cluster).unwrap() >= at(500));
    assert_eq!(status(&cluster).terminal_state, None);
}

#[test]
fn the_deadline_begins_anew_with_each_recreation_and_each_restart_in_place() {
    let mut recreated = cluster(limited(60).restarting(RestartStrategy::Recreate, 9));
    recreated.settle();
    recreated.now = at(50);
    recreated.report("js-a-0", Fate::Failed);
    recreated.settle();
    assert!(start(&recreated).unwrap() >= at(50));

    let mut in_place = cluster(limited(60).restarting(RestartStrategy::InPlaceRestart, 9));
    in_place.settle();
    let began = start(&in_place).unwrap();
    let mut write = |generation, seconds| {
        let status = in_place.jobset.status.get_or_insert_default();
        let group = status.in_place_restart.get_or_insert_default();
        group.phase = Some(InPlacePhase::InSync);
        group.generation = generation;
        group.last_transition_time = Some(Time(at(seconds)));
        in_place.settle();
        start(&in_place).unwrap()
    };
    // The workers have come up for the first time.
    assert_eq!(write(0, 20), began);
    assert_eq!(write(1, 50), at(50));
}

#[test]
fn the_start_is_written_before_anything_that_may_fail() {
    let mut cluster = cluster(limited(60));
    let first = cluster.reconcile();
    assert_eq!((first.create_jobs.len(), first.create_service), (0, None));
    let began = start(&cluster).unwrap();
    cluster.settle();
    assert_eq!((start(&cluster), cluster.jobs.len()), (Some(began), 2));
}

#[test]
fn a_start_from_before_the_gate_was_switched_off_does_not_count() {
    let mut cluster = cluster(limited(60));
    cluster.settle();
    cluster.features.active_deadline = false;
    cluster.settle();
    assert_eq!(start(&cluster), None);
    cluster.now = at(1000);
    cluster.features.active_deadline = true;
    cluster.settle();
    assert!(start(&cluster).unwrap() >= at(1000));
    assert_eq!(status(&cluster).terminal_state, None);
}

#[test]
fn without_the_gate_no_time_is_kept_and_no_deadline_holds() {
    let mut cluster = cluster(limited(1));
    cluster.features = Features::default();
    cluster.settle();
    cluster.now = at(1000);
    assert!(cluster.reconcile().is_empty());
    assert_eq!(
        (start(&cluster), status(&cluster).execution_attempts),
        (None, None)
    );
    assert_eq!(marks(&cluster), ["", ""]);
}

#[test]
fn resumptions_and_recreations_are_counted_once_each_and_pods_are_marked() {
    let mut cluster = cluster(two().suspended(true).restarting(RestartStrategy::Recreate, 9));
    cluster.settle();
    assert_eq!(status(&cluster).execution_attempts, None);
    suspend(&mut cluster, false);
    assert_eq!(status(&cluster).execution_attempts, Some(0));
    assert_eq!(marks(&cluster), ["0", "0"]);
    suspend(&mut cluster, true);
    assert_eq!(status(&cluster).execution_attempts, Some(0));
    suspend(&mut cluster, false);
    assert_eq!(status(&cluster).execution_attempts, Some(1));
    assert_eq!(marks(&cluster), ["1", "1"]);
    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    assert_eq!(status(&cluster).execution_attempts, Some(2));
    assert_eq!(
        (status(&cluster).restarts, marks(&cluster)),
        (1, vec!["2".to_owned(), "2".to_owned()])
    );
}

#[test]
fn the_count_of_a_resumption_is_written_before_a_job_is_resumed() {
    let mut cluster = cluster(two());
    cluster.settle();
    suspend(&mut cluster, true);
    cluster.jobset.spec.suspend = Some(false);
    let first = cluster.reconcile();
    assert_eq!((first.change_jobs.len(), first.create_jobs.len()), (0, 0));
    assert_eq!(first.status.unwrap().execution_attempts, Some(1));
    assert_eq!(cluster.reconcile().change_jobs.len(), 2);
    assert_eq!(status(&cluster).execution_attempts, Some(1));
}

#[test]
fn with_a_startup_order_a_resumption_is_counted_once() {
    let mut cluster = cluster(jobset([replicated_job("a", 1), replicated_job("b", 1)]).in_order());
    cluster.settle();
    cluster.report("js-a-0", Fate::Ready);
    cluster.settle();
    suspend(&mut cluster, true);
    suspend(&mut cluster, false);
    for _ in 0..3 {
        cluster.reconcile();
    }
    assert_eq!(status(&cluster).execution_attempts, Some(1));
}

#[test]
fn a_jobset_that_ran_before_the_gate_was_switched_on_begins_with_its_restarts() {
    let mut cluster = cluster(two().restarting(RestartStrategy::Recreate, 9));
    cluster.features = Features::default();
    cluster.settle();
    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    cluster.features.execution_attempts = true;
    cluster.settle();
    assert_eq!(status(&cluster).execution_attempts, Some(1));
    // Switched off again, the count stays.
    cluster.features.execution_attempts = false;
    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    assert_eq!(
        (status(&cluster).restarts, status(&cluster).execution_attempts),
        (2, Some(1))
    );
}
