//! JobSets with many Jobs, and with more than allowed.

use super::*;
use crate::jobset::limits::{BYTES_AT_ONCE, JOBS_AT_ONCE};
use crate::reconcile::jobs::Jobs;

#[test]
fn many_jobs_are_made_in_batches_until_all_are_there() {
    let jobs = 2 * JOBS_AT_ONCE + 1;
    let mut cluster = Cluster::new(jobset([replicated_job("a", i32::try_from(jobs).unwrap())]));
    for made in [JOBS_AT_ONCE, JOBS_AT_ONCE, 1] {
        let plan = cluster.reconcile();
        assert_eq!(plan.create_jobs.len(), made);
        let again = (made == JOBS_AT_ONCE).then_some(SignedDuration::ZERO);
        assert_eq!(plan.requeue_after, again);
    }
    assert_eq!(cluster.jobs.len(), jobs);
    assert!(cluster.reconcile().is_empty());
}

#[test]
fn as_many_jobs_as_fit_are_made_at_once_and_nothing_is_looked_at_again() {
    let jobs = i32::try_from(JOBS_AT_ONCE).unwrap();
    let mut cluster = Cluster::new(jobset([replicated_job("a", jobs - 1), replicated_job("b", 1)]));
    let plan = cluster.reconcile();
    assert_eq!((plan.create_jobs.len(), plan.requeue_after), (JOBS_AT_ONCE, None));
}

#[test]
fn long_templates_make_small_batches_and_one_that_is_longer_than_a_batch_is_made() {
    let length = |bytes: usize| {
        let long = replicated_job("a", 3).pod_spec(|pod| {
            pod.containers[0].args = Some(vec!["x".repeat(bytes)]);
        });
        Cluster::new(jobset([long])).reconcile().create_jobs.len()
    };
    assert_eq!(length(BYTES_AT_ONCE / 4), 3);
    assert_eq!(length(BYTES_AT_ONCE / 3), 2);
    assert_eq!(length(BYTES_AT_ONCE), 1);
}

/// A JobSet whose Jobs are all made, suspended.
fn suspended(jobs: usize) -> Cluster {
    let js = jobset([replicated_job("a", i32::try_from(jobs).unwrap())]);
    let mut cluster = Cluster::new(js.suspended(true));
    cluster.settle();
    cluster.jobset.spec.suspend = Some(false);
    cluster
}

#[test]
fn many_jobs_are_resumed_in_batches_and_the_jobset_when_all_are() {
    let mut cluster = suspended(JOBS_AT_ONCE + 1);
    let plan = cluster.reconcile();
    assert_eq!(
        (plan.change_jobs.len(), plan.requeue_after),
        (JOBS_AT_ONCE, Some(SignedDuration::ZERO))
    );
    assert_eq!(condition(&cluster, "Suspended"), Some(("True", "SuspendedJobs")));
    let plan = cluster.reconcile();
    assert_eq!((plan.change_jobs.len(), plan.requeue_after), (1, None));
    assert_eq!(condition(&cluster, "Suspended"), Some(("False", "ResumeJobs")));
}

#[test]
fn a_template_that_has_grown_resumes_few_jobs_at_once() {
    let resumed = |bytes: usize| {
        let mut cluster = suspended(4);
        let spec = cluster.jobset.spec.replicated_jobs[0]
            .template
            .spec
            .get_or_insert_default();
        let meta = spec.template.metadata.get_or_insert_default();
        meta.annotations = Some([("note".to_owned(), "x".repeat(bytes))].into());
        cluster.reconcile().change_jobs.len()
    };
    assert_eq!(resumed(BYTES_AT_ONCE / 4), 3);
    assert_eq!(resumed(BYTES_AT_ONCE), 1);
}

#[test]
fn a_batch_keeps_the_order_of_the_graph() {
    let jobs = i32::try_from(JOBS_AT_ONCE).unwrap() + 1;
    let js = jobset([
        replicated_job("a", jobs),
        replicated_job("b", 1).depends_on("a", "Ready"),
    ]);
    let mut cluster = Cluster::new(js);
    let is_a = |plan: &Plan| {
        plan.create_jobs
            .iter()
            .all(|job| label(job, labels::REPLICATED_JOB_NAME) == Some("a"))
    };
    let first = cluster.reconcile();
    assert!(is_a(&first) && first.create_jobs.len() == JOBS_AT_ONCE);
    // All existing Jobs are ready, but not all exist.
    report_all(&mut cluster, Fate::Ready);
    let second = cluster.reconcile();
    assert!(is_a(&second) && second.create_jobs.len() == 1);
    assert!(cluster.reconcile().create_jobs.is_empty());
    report_all(&mut cluster, Fate::Ready);
    assert_eq!(cluster.reconcile().create_jobs.len(), 1);
}

/// A JobSet above the limit.
fn bomb() -> JobSet {
    jobset([replicated_job("a", i32::MAX)])
}

#[test]
fn a_jobset_that_is_too_large_fails_before_anything_is_made() {
    for suspended in [true, false] {
        let mut cluster = Cluster::new(bomb().suspended(suspended));
        let plan = cluster.reconcile();
        assert_eq!(plan.finished, Some(TerminalState::Failed));
        assert!(plan.create_jobs.is_empty() && plan.create_service.is_none());
        let told = &plan.events[0];
        assert_eq!(told.reason, "InvalidJobSet");
        assert!(
            told.message.contains("spec.replicatedJobs[0].replicas"),
            "{}",
            told.message
        );
        assert!(cluster.reconcile().is_empty());
    }
}

/// The oversized JobSet with two of its Jobs.
fn running(js: &JobSet, fates: [Fate; 2]) -> Observed {
    let jobs = Jobs::new(
        js,
        crate::Features::default(),
        &crate::jobset::in_place::Agents::ByNode,
    );
    let made = fates.into_iter().zip(0..).map(|(fate, index)| {
        let mut job = jobs.make(&js.spec.replicated_jobs[0], index);
        job.spec.as_mut().unwrap().suspend = Some(false);
        crate::common::testing::set_fate(&mut job, fate, at(0));
        job
    });
    observe(js, made)
}

#[test]
fn jobs_of_a_jobset_that_is_too_large_stay_as_they_are_and_an_event_says_why() {
    for (js, fates) in [
        (bomb(), [Fate::Ready, Fate::Ready]),
        (
            bomb().restarting(RestartStrategy::Recreate, 3),
            [Fate::Ready, Fate::Failed],
        ),
        (
            bomb().restarting(RestartStrategy::InPlaceRestart, 3),
            [Fate::Ready, Fate::Pending],
        ),
        // A Job of an earlier run.
        (
            bomb().status(|status| status.restarts = 1),
            [Fate::Ready, Fate::Ready],
        ),
    ] {
        let plan = plan(&running(&js, fates));
        let [told] = &plan.complaints[..] else {
            panic!("{:?}", plan.complaints)
        };
        assert_eq!(
            (told.reason.as_str(), told.severity),
            (JOBSET_TOO_LARGE, Severity::Warning)
        );
        assert!(
            told.message.contains("spec.replicatedJobs[0].replicas"),
            "{told:?}"
        );
        assert!(plan.create_jobs.is_empty() && plan.delete_jobs.is_empty() && plan.change_jobs.is_empty());
        assert_eq!((plan.finished, plan.events.len()), (None, 0));
        let status = plan.status.unwrap();
        assert_eq!(status.restarts, js.restart_attempt());
    }
}

#[test]
fn a_jobset_that_is_too_large_can_be_suspended_and_ends_as_its_policies_say() {
    let stopped = plan(&running(&bomb().suspended(true), [Fate::Running, Fate::Running]));
    let changes = stopped.change_jobs.iter().map(|change| &change.change);
    assert!(changes.eq([&Change::Suspend, &Change::Suspend]));

    let failed = plan(&running(&bomb(), [Fate::Running, Fate::Failed]));
    assert_eq!(failed.finished, Some(TerminalState::Failed));
    let any = bomb().with(|js| {
        js.spec.success_policy = Some(SuccessPolicy {
            operator: "Any".into(),
            ..SuccessPolicy::default()
        });
    });
    let completed = plan(&running(&any, [Fate::Running, Fate::Succeeded]));
    assert_eq!(completed.finished, Some(TerminalState::Completed));
}

#[test]
fn a_jobset_that_is_scaled_back_goes_on() {
    let mut cluster = Cluster::new(two());
    cluster.features.elastic_jobset = true;
    cluster.settle();
    let scale = |cluster: &mut Cluster, pods: i32| {
        let job = cluster.jobset.spec.replicated_jobs[0]
            .template
            .spec
            .as_mut()
            .unwrap();
        (job.parallelism, job.completions) = (Some(pods), Some(pods));
        job.completion_mode = Some("Indexed".to_owned());
        let plan = cluster.reconcile();
        (plan.change_jobs.len(), plan.complaints.len())
    };
    assert_eq!(scale(&mut cluster, 100_000), (0, 1));
    assert_eq!(scale(&mut cluster, 50_000), (2, 0));
}
