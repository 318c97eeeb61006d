//! Whatever happens to the Jobs, in whatever order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Happening {
    Reconcile,
    Job(usize, Fate),
    GarbageCollected,
    UserDeletes(usize),
    Suspend(bool),
}

fn happening() -> impl Strategy<Value = Happening> {
    let fate = prop_oneof![
        Just(Fate::Running),
        Just(Fate::Ready),
        Just(Fate::Succeeded),
        Just(Fate::Failed)
    ];
    prop_oneof![
        4 => Just(Happening::Reconcile),
        6 => (0..6_usize, fate).prop_map(|(job, fate)| Happening::Job(job, fate)),
        2 => Just(Happening::GarbageCollected),
        1 => (0..6_usize).prop_map(Happening::UserDeletes),
        1 => any::<bool>().prop_map(Happening::Suspend),
    ]
}

fn any_jobset() -> impl Strategy<Value = JobSet> {
    let strategy = prop_oneof![
        Just(RestartStrategy::Recreate),
        Just(RestartStrategy::BlockingRecreate),
        Just(RestartStrategy::InPlaceRestart)
    ];
    (0..3_i32, strategy, 0..6_u8, any::<bool>()).prop_map(|(max_restarts, strategy, order, any)| {
        let b = replicated_job("b", 2);
        let (b, in_order) = match order {
            0 => (b.depends_on("a", "Ready"), false),
            1 => (b, true),
            _ => (b, false),
        };
        let js =
            jobset([replicated_job("a", 2), b, replicated_job("c", 1)]).restarting(strategy, max_restarts);
        let js = if in_order { js.in_order() } else { js };
        let status = match order {
            3 => Some("Succeeded"),
            4 => Some("Active"),
            5 => Some("Ready"),
            _ => None,
        };
        let js = js.with(|js| {
            js.spec.execution_policy = status.map(|status| lockstep_api::ExecutionPolicy {
                execution_policy_order: Some("InOrder".into()),
                replicated_jobs_status: Some(status.into()),
            });
        });
        let single = order == 2 && strategy_allows_single_jobs(&js);
        let js = if single {
            js.rule(rule("one", Action::RestartJob))
        } else {
            js
        };
        js.with(|js| {
            js.spec.success_policy = any.then(|| SuccessPolicy {
                operator: "Any".into(),
                target_replicated_jobs: vec!["c".to_owned()],
            });
        })
    })
}

fn strategy_allows_single_jobs(js: &JobSet) -> bool {
    js.restart_strategy() != RestartStrategy::InPlaceRestart
}

/// A cluster with every feature.
fn featured(js: JobSet) -> Cluster {
    let mut cluster = Cluster::new(js);
    cluster.features.restart_job = true;
    cluster.features.elastic_jobset = true;
    cluster
}

fn happen(cluster: &mut Cluster, happening: &Happening) {
    let nth = |cluster: &Cluster, index: usize| cluster.jobs.keys().nth(index).cloned();
    match happening {
        Happening::Reconcile => check_one_step(cluster),
        Happening::Job(index, fate) => {
            if let Some(name) = nth(cluster, *index) {
                cluster.report(&name, *fate);
            }
        }
        Happening::GarbageCollected => cluster.collect_garbage(),
        Happening::UserDeletes(index) => {
            if let Some(name) = nth(cluster, *index) {
                cluster.jobs.remove(&name);
            }
        }
        Happening::Suspend(suspend) => cluster.jobset.spec.suspend = Some(*suspend),
    }
}

/// True if the failure policy has asked to recreate only this Job.
fn is_behind(cluster: &Cluster, job: &str) -> bool {
    let label = |key| label(&cluster.jobs[job], key).unwrap();
    let index = label(labels::JOB_INDEX).parse().unwrap();
    let wanted = cluster
        .jobset
        .job_restarts(label(labels::REPLICATED_JOB_NAME), index);
    label(labels::JOB_RESTART_ATTEMPT).parse::<i32>().unwrap() < wanted
}

fn check_one_step(cluster: &mut Cluster) {
    let before = cluster.jobset.status.clone().unwrap_or_default();
    let finished = cluster.jobset.is_finished();
    let attempt = |name: &str| {
        label(&cluster.jobs[name], labels::RESTART_ATTEMPT)
            .unwrap()
            .parse::<i32>()
            .unwrap()
    };
    let observed = cluster.observe();
    let decided = plan(&observed);
    // The same input gives the same plan.
    assert_eq!(plan(&observed), decided);
    for job in &decided.delete_jobs {
        assert!(
            finished || attempt(&job.name) < before.restarts || is_behind(cluster, &job.name),
            "deletes a Job that should live: {job:?}"
        );
    }
    assert!(
        !finished || decided.create_jobs.is_empty(),
        "nothing is created for a finished JobSet"
    );
    if let Some(status) = &decided.status {
        assert!(status.restarts - before.restarts <= 1);
        assert!(status.restarts >= before.restarts);
        assert!(status.restarts_count_towards_max <= cluster.jobset.max_restarts());
    } else {
        assert_eq!(decided.events, [], "events tell of status changes");
    }
    assert_eq!(cluster.reconcile(), decided);
}

proptest! {
    #[test]
    fn every_history_settles_and_a_settled_cluster_has_nothing_left_to_do(
        js in any_jobset(),
        history in prop::collection::vec(happening(), 0..60),
    ) {
        let mut cluster = featured(js);
        for happening in &history {
            happen(&mut cluster, happening);
        }
        cluster.settle();
        prop_assert!(cluster.reconcile().is_empty());
        let ends = cluster.events.iter().filter(|event| {
            ["AllJobsCompleted", "ReachedMaxRestarts", "FailedJobs"].contains(&event.reason.as_str())
        });
        prop_assert_eq!(ends.count(), usize::from(cluster.jobset.is_finished()), "one event reports the end");
        if !cluster.jobset.is_finished() && cluster.jobset.is_suspended() {
            let all_stopped = cluster.jobs.values().filter(|job| {
                job.status.as_ref().is_none_or(|status| status.conditions.is_none())
            }).all(|job| job.spec.as_ref().unwrap().suspend == Some(true));
            prop_assert!(all_stopped);
        }
    }

    #[test]
    fn a_jobset_whose_jobs_all_become_ready_and_succeed_completes(
        js in any_jobset(),
        history in prop::collection::vec(happening(), 0..30),
    ) {
        let mut cluster = featured(js);
        for happening in &history {
            happen(&mut cluster, happening);
        }
        cluster.jobset.spec.suspend = Some(false);
        use Fate::{Ready, Succeeded};
        for fate in [Ready, Ready, Ready, Succeeded, Succeeded, Succeeded] {
            cluster.settle();
            report_all(&mut cluster, fate);
        }
        cluster.settle();
        prop_assert!(cluster.jobset.is_finished());
    }
}
