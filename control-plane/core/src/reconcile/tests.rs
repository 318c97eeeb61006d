mod in_place;
mod invalid;
mod properties;
mod sizes;
mod ttl;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use lockstep_api::{
    FailurePolicyAction as Action, InPlaceRestartStatus, ReplicatedJobStatus, RestartStrategy, SuccessPolicy,
    TerminalState, annotations, conditions,
};

use super::*;
use crate::common::testing::{
    Cluster, Fate, JobSetBuild, ReplicatedJobBuild, at, child, jobset, observe, replicated_job, rule,
};
use crate::jobset::plan::Change;

fn two() -> JobSet {
    jobset([replicated_job("a", 2)])
}

fn condition<'a>(cluster: &'a Cluster, type_: &str) -> Option<(&'a str, &'a str)> {
    let condition = cluster.jobset.status.as_ref()?.condition(type_)?;
    Some((condition.status.as_str(), condition.reason.as_str()))
}

fn event_reasons(cluster: &Cluster) -> Vec<&str> {
    cluster.events.iter().map(|event| event.reason.as_str()).collect()
}

fn report_all(cluster: &mut Cluster, fate: Fate) {
    for name in cluster.jobs.keys().cloned().collect::<Vec<_>>() {
        cluster.report(&name, fate);
    }
}

#[test]
fn a_new_jobset_gets_service_jobs_and_status_at_once() {
    let mut cluster = Cluster::new(two());
    let plan = cluster.reconcile();
    assert_eq!(cluster.job_names(), ["js-a-0", "js-a-1"]);
    assert!(plan.create_service.is_some());
    assert_eq!(plan.status.unwrap().replicated_jobs_status.len(), 1);
    assert_eq!(plan.events, []);
    assert!(cluster.reconcile().is_empty());
}

#[test]
fn a_jobset_of_another_controller_or_in_deletion_is_left_unchanged() {
    let other = two().with(|js| js.spec.managed_by = Some("example.com/other".to_owned()));
    assert_eq!(plan(&observe(&other, [])), Plan::default());
    let ours = two().with(|js| js.spec.managed_by = Some(lockstep_api::CONTROLLER_NAME.to_owned()));
    assert_eq!(plan(&observe(&ours, [])).create_jobs.len(), 2);
    let deleted = two().with(|js| js.metadata.deletion_timestamp = Some(Time(at(0))));
    assert_eq!(plan(&observe(&deleted, [])), Plan::default());
}

#[test]
fn completion_is_final_and_deletes_what_still_runs() {
    let mut cluster = Cluster::new(two().with(|js| {
        js.spec.success_policy = Some(SuccessPolicy {
            operator: "Any".into(),
            ..Default::default()
        });
    }));
    cluster.settle();
    cluster.report("js-a-0", Fate::Succeeded);
    cluster.report("js-a-1", Fate::Ready);
    let plan = cluster.reconcile();
    assert_eq!(plan.finished, Some(TerminalState::Completed));
    cluster.settle();
    assert_eq!(
        condition(&cluster, "Completed"),
        Some(("True", "AllJobsCompleted"))
    );
    assert_eq!(cluster.job_names(), ["js-a-0"]);
    assert_eq!(event_reasons(&cluster), ["AllJobsCompleted"]);
}

#[test]
fn a_finished_jobset_is_deleted_when_its_time_is_up() {
    let mut cluster = Cluster::new(two().with(|js| js.spec.ttl_seconds_after_finished = Some(60)));
    cluster.settle();
    report_all(&mut cluster, Fate::Succeeded);
    cluster.settle();
    let plan = cluster.reconcile();
    let left = plan.requeue_after.unwrap();
    assert!(left.is_positive() && left.as_secs() < 60, "{left}");
    cluster.now += left;
    assert!(cluster.reconcile().delete_jobset);
    assert!(cluster.deleted);
}

#[test]
fn without_a_failure_policy_a_failed_job_fails_the_jobset() {
    let mut cluster = Cluster::new(two());
    cluster.settle();
    cluster.report("js-a-1", Fate::Failed);
    assert_eq!(cluster.reconcile().finished, Some(TerminalState::Failed));
    cluster.settle();
    assert_eq!(condition(&cluster, "Failed"), Some(("True", "FailedJobs")));
    assert_eq!(cluster.job_names(), ["js-a-1"]);
}

#[test]
fn recreate_writes_the_new_attempt_before_it_deletes_and_creates_each_job_when_its_name_is_free() {
    let mut cluster = Cluster::new(two().restarting(RestartStrategy::Recreate, 1));
    cluster.settle();
    report_all(&mut cluster, Fate::Ready);
    cluster.report("js-a-1", Fate::Failed);
    let plan = cluster.reconcile();
    assert_eq!((plan.delete_jobs.len(), plan.create_jobs.len()), (0, 0));
    let status = plan.status.unwrap();
    assert_eq!((status.restarts, status.restarts_count_towards_max), (1, 1));
    assert_eq!(
        condition(&cluster, "RestartingJobSet"),
        Some(("True", "DefaultFailurePolicy"))
    );

    assert_eq!(cluster.reconcile().delete_jobs.len(), 2);
    cluster.jobs.remove("js-a-0");
    let plan = cluster.reconcile();
    assert_eq!(plan.create_jobs.len(), 1);
    assert_eq!(
        plan.create_jobs[0].metadata.labels.as_ref().unwrap()[labels::RESTART_ATTEMPT],
        "1"
    );
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-a-0", "js-a-1"]);

    report_all(&mut cluster, Fate::Ready);
    cluster.settle();
    assert_eq!(
        condition(&cluster, "RestartingJobSet"),
        Some(("False", "JobsReady"))
    );
    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    assert_eq!(
        condition(&cluster, "Failed"),
        Some(("True", "ReachedMaxRestarts"))
    );
    assert_eq!(
        event_reasons(&cluster),
        [
            "DefaultFailurePolicy",
            "RestartJobSetFailurePolicyAction",
            "JobsReady",
            "ReachedMaxRestarts",
            "JobSetFailed",
        ]
    );
}

#[test]
fn blocking_recreate_waits_for_all_jobs_to_be_gone() {
    let mut cluster = Cluster::new(two().restarting(RestartStrategy::BlockingRecreate, 1));
    cluster.settle();
    cluster.report("js-a-1", Fate::Failed);
    cluster.reconcile();
    cluster.reconcile();
    cluster.jobs.remove("js-a-0");
    assert_eq!(cluster.reconcile().create_jobs, []);
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-a-0", "js-a-1"]);
}

#[test]
fn restarts_that_ignore_max_restarts_do_not_count() {
    let js = two()
        .restarting(RestartStrategy::Recreate, 0)
        .rule(rule("forever", Action::RestartJobSetAndIgnoreMaxRestarts));
    let mut cluster = Cluster::new(js);
    for restarts in 1..4 {
        cluster.settle();
        cluster.report("js-a-0", Fate::Failed);
        cluster.reconcile();
        let status = cluster.jobset.status.as_ref().unwrap();
        assert_eq!(
            (status.restarts, status.restarts_count_towards_max),
            (restarts, 0)
        );
    }
    assert_eq!(
        condition(&cluster, "RestartingJobSet"),
        Some(("True", "FailurePolicy_forever"))
    );
}

#[test]
fn suspend_and_resume() {
    let mut cluster = Cluster::new(two());
    cluster.settle();
    report_all(&mut cluster, Fate::Ready);
    cluster.jobset.spec.suspend = Some(true);
    assert_eq!(cluster.reconcile().change_jobs.len(), 2);
    assert_eq!(condition(&cluster, "Suspended"), Some(("True", "SuspendedJobs")));
    cluster.settle();
    cluster.jobset.spec.suspend = Some(false);
    let plan = cluster.reconcile();
    assert!(
        plan.change_jobs
            .iter()
            .all(|change| matches!(change.change, Change::Resume(_))),
        "{plan:#?}"
    );
    assert_eq!(plan.change_jobs.len(), 2);
    cluster.settle();
    assert_eq!(condition(&cluster, "Suspended"), Some(("False", "ResumeJobs")));
    assert_eq!(event_reasons(&cluster), ["SuspendedJobs", "ResumeJobs"]);
}

#[test]
fn a_jobset_created_suspended_makes_suspended_jobs() {
    let mut cluster = Cluster::new(two().suspended(true));
    cluster.settle();
    assert!(
        cluster
            .jobs
            .values()
            .all(|job| job.spec.as_ref().unwrap().suspend == Some(true))
    );
    assert_eq!(condition(&cluster, "Suspended"), Some(("True", "SuspendedJobs")));
}

#[test]
fn depends_on_creates_each_replicated_job_in_its_turn() {
    let js = jobset([
        replicated_job("a", 1),
        replicated_job("b", 1).depends_on("a", "Ready"),
        replicated_job("c", 1).depends_on("b", "Complete"),
    ]);
    let mut cluster = Cluster::new(js);
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-a-0"]);
    cluster.report("js-a-0", Fate::Ready);
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-a-0", "js-b-0"]);
    cluster.report("js-b-0", Fate::Ready);
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-a-0", "js-b-0"]);
    cluster.report("js-b-0", Fate::Succeeded);
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-a-0", "js-b-0", "js-c-0"]);
}

#[test]
fn in_order_starts_and_resumes_one_replicated_job_after_the_other() {
    let js = jobset([replicated_job("a", 1), replicated_job("b", 1)]).in_order();
    let mut cluster = Cluster::new(js.suspended(true));
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-a-0", "js-b-0"]);
    cluster.jobset.spec.suspend = Some(false);
    let resumed = |plan: &Plan| {
        plan.change_jobs
            .iter()
            .map(|change| change.job.name.clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(resumed(&cluster.reconcile()), ["js-a-0"]);
    assert_eq!(condition(&cluster, "StartupPolicyInProgress").unwrap().0, "True");
    assert_eq!(condition(&cluster, "Suspended").unwrap().0, "True");
    cluster.report("js-a-0", Fate::Ready);
    assert_eq!(resumed(&cluster.reconcile()), ["js-b-0"]);
    cluster.report("js-b-0", Fate::Ready);
    cluster.settle();
    assert_eq!(condition(&cluster, "StartupPolicyInProgress").unwrap().0, "False");
    assert_eq!(condition(&cluster, "StartupPolicyCompleted").unwrap().0, "True");
    assert_eq!(condition(&cluster, "Suspended").unwrap().0, "False");
}

#[test]
fn names_held_by_an_earlier_jobset_of_the_same_name_are_waited_for() {
    let js = two();
    let mut left_behind = child(&js, "a", 0, Fate::Ready);
    left_behind.metadata.owner_references.as_mut().unwrap()[0].uid = "uid-before".to_owned();
    let mut foreign = child(&js, "a", 1, Fate::Ready);
    foreign.metadata.owner_references = None;
    let plan = plan(&observe(&js, [left_behind, foreign]));
    // The API server will refuse the second, and its owner must learn of that.
    let names: Vec<_> = plan
        .create_jobs
        .iter()
        .map(|job| job.metadata.name.as_deref().unwrap())
        .collect();
    assert_eq!(names, ["js-a-1"]);
    assert_eq!(plan.status.unwrap().replicated_jobs_status[0].ready, 0);
}

#[test]
fn a_job_with_a_broken_attempt_is_neither_counted_nor_deleted() {
    let js = two().status(|status| status.restarts = 1);
    let mut job = child(&js, "a", 0, Fate::Failed);
    job.metadata
        .labels
        .as_mut()
        .unwrap()
        .insert(labels::RESTART_ATTEMPT.to_owned(), "x".to_owned());
    let plan = plan(&observe(&js, [job]));
    assert_eq!((plan.delete_jobs.len(), plan.finished), (0, None));
    assert_eq!(plan.create_jobs.len(), 1);
}

#[test]
fn restart_job_recreates_the_failed_job_and_leaves_the_others() {
    let js = two()
        .restarting(RestartStrategy::Recreate, 1)
        .rule(rule("one", Action::RestartJob));
    let mut cluster = Cluster::new(js);
    cluster.features.restart_job = true;
    cluster.settle();
    report_all(&mut cluster, Fate::Ready);
    cluster.settle();
    let other = cluster.jobs["js-a-0"].metadata.uid.clone();
    let attempt = |cluster: &Cluster, job: &str| {
        label(&cluster.jobs[job], labels::JOB_RESTART_ATTEMPT)
            .unwrap()
            .to_owned()
    };
    cluster.report("js-a-1", Fate::Failed);
    cluster.settle();
    let status = cluster.jobset.status.clone().unwrap();
    let of_a = status.replicated_job("a").unwrap();
    assert_eq!(of_a.job_restarts, [0, 1]);
    assert_eq!(of_a.job_restarts_count_towards_max, [0, 1]);
    assert_eq!((status.restarts, status.restarts_count_towards_max), (0, 0));
    assert_eq!(cluster.jobs["js-a-0"].metadata.uid, other);
    assert_eq!(
        (attempt(&cluster, "js-a-0"), attempt(&cluster, "js-a-1")),
        ("0".to_owned(), "1".to_owned())
    );
    assert_eq!(event_reasons(&cluster), ["RestartJobFailurePolicyAction"]);
    // Restarts of single Jobs count together with those of the set.
    cluster.report("js-a-0", Fate::Failed);
    cluster.settle();
    assert_eq!(
        condition(&cluster, "Failed"),
        Some(("True", "ReachedMaxRestarts"))
    );
}

#[test]
fn restart_job_that_ignores_max_restarts_does_not_count() {
    let js = two()
        .restarting(RestartStrategy::Recreate, 0)
        .rule(rule("one", Action::RestartJobAndIgnoreMaxRestarts));
    let mut cluster = Cluster::new(js);
    cluster.features.restart_job = true;
    for restarts in 1..4 {
        cluster.settle();
        cluster.report("js-a-1", Fate::Failed);
        cluster.settle();
        let status = cluster.jobset.status.as_ref().unwrap();
        let of_a = status.replicated_job("a").unwrap();
        assert_eq!(of_a.job_restarts, [0, restarts]);
        assert!(of_a.job_restarts_count_towards_max.is_empty());
    }
}

#[test]
fn an_elastic_jobset_scales_the_jobs_that_run() {
    let mut cluster = Cluster::new(two());
    cluster.settle();
    report_all(&mut cluster, Fate::Ready);
    let scale = |js: &mut JobSet| {
        let spec = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
        (spec.parallelism, spec.completions) = (Some(3), Some(3));
    };
    scale(&mut cluster.jobset);
    cluster.settle();
    assert_eq!(cluster.jobs["js-a-0"].spec.as_ref().unwrap().parallelism, Some(1));
    cluster.features.elastic_jobset = true;
    cluster.settle();
    assert!(
        cluster
            .jobs
            .values()
            .all(|job| job.spec.as_ref().unwrap().parallelism == Some(3))
    );
}

#[test]
fn agents_that_report_by_annotation_get_their_orders_in_the_status() {
    let js = two().restarting(RestartStrategy::InPlaceRestart, 1);
    let jobs = || [0, 1].map(|index| child(&js, "a", index, Fate::Ready));
    let status = |attempts: [i32; 2]| {
        let mut observed = observe(&js, jobs());
        observed.agent_pods = attempts
            .map(|attempt| upstream_agent::AgentPod {
                attempt: Some(attempt),
                ..Default::default()
            })
            .to_vec();
        *plan(&observed).status.unwrap()
    };
    assert_eq!(status([0, 0]).current_in_place_restart_attempt, Some(0));
    assert_eq!(status([0, 1]).previous_in_place_restart_attempt, Some(0));
    let over = status([0, 2]);
    assert_eq!(over.terminal_state, Some(TerminalState::Failed));
    assert_eq!(over.in_place_restart, None);
}

#[test]
fn what_blocked_a_restart_is_over_once_agents_report_by_annotation() {
    let mut js = two().restarting(RestartStrategy::InPlaceRestart, 1);
    let blocked = serde_json::json!({
        "type": conditions::RESTART_BLOCKED, "status": "True", "reason": "WorkerNotReported", "message": "pod p",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    });
    let status = js.status.get_or_insert_default();
    status.conditions.push(serde_json::from_value(blocked).unwrap());
    let blocks = |attempt: Option<i32>| {
        let mut observed = observe(&js, [0, 1].map(|index| child(&js, "a", index, Fate::Running)));
        observed.agent_pods = vec![upstream_agent::AgentPod {
            attempt,
            ..Default::default()
        }];
        plan(&observed)
            .status
            .unwrap()
            .is_true(conditions::RESTART_BLOCKED)
    };
    assert!(blocks(None));
    assert!(!blocks(Some(0)));
}

#[test]
fn without_its_gate_nothing_restarts_in_place() {
    let mut cluster = Cluster::new(two().restarting(RestartStrategy::InPlaceRestart, 1));
    cluster.features.in_place_restart = false;
    let plan = cluster.reconcile();
    assert_eq!(plan.finished, Some(TerminalState::Failed));
    assert!(plan.events[0].message.contains("feature gate is disabled"));
}

#[test]
fn a_container_that_crashes_before_it_can_report_uses_up_max_restarts_too() {
    let js = two().restarting(RestartStrategy::InPlaceRestart, 1);
    let ends = |has_daemons: bool| {
        let mut observed = observe(&js, [child(&js, "a", 0, Fate::Running)]);
        observed.has_daemons = has_daemons;
        observed.agent_pods = vec![upstream_agent::AgentPod {
            container_restarts: 2,
            ..Default::default()
        }];
        plan(&observed).finished
    };
    assert_eq!(ends(false), Some(TerminalState::Failed));
    // If workers are supervised, their coordinator counts.
    assert_eq!(ends(true), None);
}

#[test]
fn a_job_with_an_invalid_index_has_all_jobs_recreated() {
    let js = two()
        .restarting(RestartStrategy::Recreate, 1)
        .rule(rule("one", Action::RestartJob));
    let mut job = child(&js, "a", 0, Fate::Failed);
    let labels = job.metadata.labels.as_mut().unwrap();
    labels.insert(labels::JOB_INDEX.to_owned(), usize::MAX.to_string());
    let mut observed = observe(&js, [job]);
    observed.features.restart_job = true;
    let status = plan(&observed).status.unwrap();
    assert_eq!(status.restarts, 1);
    assert!(status.replicated_jobs_status[0].job_restarts.is_empty());
}
