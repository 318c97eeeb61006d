use std::collections::BTreeMap;

use lockstep_api::{FailurePolicyAction as Action, RestartStrategy, SuccessPolicy};

use super::*;
use crate::common::testing::{
    Cluster, Fate, JobSetBuild, ReplicatedJobBuild, at, child, jobset, replicated_job, rule,
};
use crate::jobset::observed::Observed;
use crate::reconcile::plan;
use crate::restart::gather;

fn recorded(cluster: &Cluster) -> BTreeMap<String, (i32, String)> {
    let status = cluster.jobset.status.as_ref().unwrap();
    let all = status.completed_jobs.iter();
    all.map(|all| (all.name.clone(), (all.restart_attempt, all.indexes.clone())))
        .collect()
}

fn counts(cluster: &Cluster, name: &str) -> (i32, i32) {
    let status = cluster.jobset.status.as_ref().unwrap();
    let counts = status.replicated_job(name).unwrap();
    (counts.succeeded, counts.active)
}

#[test]
fn a_removed_completed_job_is_not_recreated_and_the_jobset_completes() {
    for strategy in [RestartStrategy::Recreate, RestartStrategy::InPlaceRestart] {
        let mut cluster = Cluster::new(
            jobset([replicated_job("prep", 3), replicated_job("main", 1)]).restarting(strategy, 3),
        );
        cluster.settle();
        cluster.report("js-main-0", Fate::Ready);
        cluster.report("js-prep-0", Fate::Succeeded);
        cluster.report("js-prep-2", Fate::Succeeded);
        cluster.settle();
        assert_eq!(recorded(&cluster)["prep"], (0, "0,2".to_owned()));
        cluster.jobs.remove("js-prep-0");
        cluster.jobs.remove("js-prep-2");
        assert!(cluster.reconcile().is_empty());
        assert_eq!(cluster.job_names(), ["js-main-0", "js-prep-1"]);
        assert_eq!(counts(&cluster, "prep"), (2, 0));
        // A Job that has not completed is recreated.
        cluster.jobs.remove("js-prep-1");
        cluster.settle();
        assert_eq!(cluster.job_names(), ["js-main-0", "js-prep-1"]);
        cluster.report("js-prep-1", Fate::Succeeded);
        cluster.settle();
        cluster.jobs.remove("js-prep-1");
        assert_eq!(recorded(&cluster)["prep"], (0, "0-2".to_owned()));
        cluster.report("js-main-0", Fate::Succeeded);
        cluster.settle();
        assert!(cluster.jobset.status.as_ref().unwrap().is_true("Completed"));
        assert_eq!(counts(&cluster, "prep"), (3, 0));
    }
}

#[test]
fn dependents_and_the_operator_any_see_it_as_done() {
    let after = replicated_job("after", 1).depends_on("prep", "Complete");
    let mut cluster = Cluster::new(jobset([replicated_job("prep", 2), after]).with(|js| {
        js.spec.success_policy = Some(SuccessPolicy {
            operator: "All".into(),
            target_replicated_jobs: vec!["prep".to_owned()],
        });
    }));
    cluster.settle();
    cluster.report("js-prep-0", Fate::Succeeded);
    cluster.settle();
    cluster.jobs.remove("js-prep-0");
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-prep-1"]);
    cluster.report("js-prep-1", Fate::Succeeded);
    cluster.settle();
    assert!(cluster.jobset.status.as_ref().unwrap().is_true("Completed"));

    let after = replicated_job("after", 1).depends_on("prep", "Complete");
    let mut cluster = Cluster::new(jobset([replicated_job("prep", 1), after]));
    cluster.settle();
    cluster.report("js-prep-0", Fate::Succeeded);
    // The Job is removed before the status counts it: a reconciler that sees the removal records
    // it.
    let gone = cluster.jobs.remove("js-prep-0").unwrap();
    let gone = CompletedJob::of(&gone)
        .unwrap()
        .stand_in(&cluster.jobset)
        .unwrap();
    let seen = Observed::new(
        Arc::new(cluster.jobset.clone()),
        vec![Arc::new(gone)],
        Vec::new(),
        at(9),
    );
    let decided = plan(&seen);
    assert_eq!(decided.status.unwrap().completed_jobs[0].indexes, "0");
    let made: Vec<_> = decided
        .create_jobs
        .iter()
        .map(|job| job.metadata.name.as_deref())
        .collect();
    assert_eq!(made, [Some("js-after-0")]);
}

#[test]
fn a_restart_attempt_that_runs_everything_again_does_so() {
    let js = jobset([replicated_job("prep", 1), replicated_job("main", 1)])
        .restarting(RestartStrategy::Recreate, 3)
        .rule(rule("again", Action::RestartJobSet));
    let mut cluster = Cluster::new(js);
    cluster.settle();
    cluster.report("js-prep-0", Fate::Succeeded);
    cluster.settle();
    cluster.jobs.remove("js-prep-0");
    cluster.report("js-main-0", Fate::Failed);
    cluster.settle();
    assert_eq!(cluster.job_names(), ["js-main-0", "js-prep-0"]);
    assert!(recorded(&cluster).is_empty());
    assert_eq!(counts(&cluster, "prep"), (0, 0));
}

#[test]
fn a_job_that_is_there_counts_as_what_it_is() {
    let js = jobset([replicated_job("a", 2)]).status(|status| {
        status.completed_jobs = vec![CompletedJobs {
            name: "a".to_owned(),
            restart_attempt: 0,
            indexes: "0-1".to_owned(),
        }];
    });
    let there = Arc::new(child(&js, "a", 0, Fate::Ready));
    let jobs = with_gone(&js, vec![Arc::clone(&there)]);
    assert_eq!(jobs.len(), 2);
    assert_eq!(jobs[0], there);
    assert_eq!(jobs[1].metadata.name.as_deref(), Some("js-a-1"));
}

#[test]
fn workers_of_one_that_is_gone_have_completed() {
    let js = jobset([replicated_job("prep", 1), replicated_job("main", 1)])
        .restarting(RestartStrategy::InPlaceRestart, 3)
        .status(|status| {
            status.completed_jobs = vec![CompletedJobs {
                name: "prep".to_owned(),
                restart_attempt: 0,
                indexes: "0".to_owned(),
            }];
        });
    let jobs = with_gone(&js, vec![Arc::new(child(&js, "main", 0, Fate::Ready))]);
    let gathered = gather(&js, &jobs, [], 0);
    let completed: BTreeMap<&str, bool> = gathered
        .workers
        .iter()
        .map(|(identity, worker)| (&*identity.job, worker.completed))
        .collect();
    assert_eq!(completed, [("js-main-0", false), ("js-prep-0", true)].into());
    assert_eq!(gathered.finished_stages, ["prep".to_owned()].into());
}

#[test]
fn whatever_anybody_writes_is_read_within_the_jobs_that_there_should_be() {
    let of = |text: &str| stated(text, &replicated_job("a", 5)).collect::<Vec<_>>();
    assert_eq!(of("0-4294967295"), [0, 1, 2, 3, 4]);
    assert_eq!(of("4294967295,3,1-2,0-2,x,-"), [0, 1, 2, 3]);
    assert_eq!(of("9-2,"), [] as [u32; 0]);
    let all = [0, 1, 2, 5, 7, 8].into();
    assert_eq!(in_ranges(&all), "0-2,5,7-8");
    assert_eq!(in_ranges(&BTreeSet::new()), "");
}

#[test]
fn what_is_recorded_of_the_largest_jobset_is_short() {
    let most = u32::try_from(limits::MOST_JOBS).unwrap();
    let every_other = (0..most).step_by(2).collect();
    assert!(in_ranges(&every_other).len() < 64 << 10);
}
