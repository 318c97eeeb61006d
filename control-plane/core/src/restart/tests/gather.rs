//! The group that results from Jobs and pods.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use lockstep_api::{Gang, GangPhase, GangStatus, JobSet, RestartStrategy, annotations};

use serde_json::json;

use crate::common::features::Features;
use crate::common::testing::{JobSetBuild, jobset, replicated_job};
use crate::jobset::in_place::{Agents, Obstacle};
use crate::jobset::pod::PodSummary;
use crate::jobset::upstream_agent::AgentPod;
use crate::reconcile::jobs::Jobs;
use crate::restart::{RestartLevel, Scope, UnixNanos, gather};

#[test]
fn workers_restart_as_their_pods_were_created_whatever_the_jobset_says_now() {
    let supervised = jobset([replicated_job("a", 2)]).restarting(RestartStrategy::InPlaceRestart, 3);
    let plain = supervised.clone().annotated(annotations::SUPERVISE, "none");
    for (made_as, now, level) in [
        (&supervised, &plain, RestartLevel::Process),
        (&plain, &supervised, RestartLevel::Container),
    ] {
        let jobs = Jobs::new(made_as, Features::default(), &Agents::ByNode);
        // The second Job does not exist yet.
        let job = Arc::new(jobs.make(&made_as.spec.replicated_jobs[0], 0));
        let workers = gather(now, &[job], [], 0).workers;
        let levels: Vec<RestartLevel> = workers.values().map(|worker| worker.level).collect();
        assert_eq!(levels, [level; 2]);
    }
}

#[test]
fn only_workers_with_an_agent_have_worker_restarts() {
    let mut supervised = jobset([replicated_job("a", 1), replicated_job("b", 1)])
        .restarting(RestartStrategy::InPlaceRestart, 3);
    let metadata = supervised.spec.replicated_jobs[1]
        .template
        .metadata
        .get_or_insert_default();
    let said = metadata.annotations.get_or_insert_default();
    said.insert(annotations::RESTART_SCOPE.to_owned(), "worker".to_owned());
    let plain = supervised.clone().annotated(annotations::SUPERVISE, "none");
    for (js, of_b) in [(supervised, Scope::Worker), (plain, Scope::Group)] {
        let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
        let made = js.spec.replicated_jobs.iter();
        let made: Vec<_> = made
            .map(|replicated| Arc::new(jobs.make(replicated, 0)))
            .collect();
        let workers = gather(&js, &made, [], 0).workers;
        let scopes: Vec<Scope> = workers.values().map(|worker| worker.scope).collect();
        assert_eq!(scopes, [Scope::Group, of_b]);
    }
}

#[test]
fn no_worker_runs_before_the_gang_is_bound() {
    let mut js = jobset([replicated_job("a", 3)])
        .restarting(RestartStrategy::InPlaceRestart, 3)
        .with(|js| {
            js.spec.gang = Some(Gang {
                min_available: Some(2),
                ..Gang::default()
            });
        });
    let workers = |js: &JobSet| {
        let jobs = Jobs::new(js, Features::default(), &Agents::ByNode);
        let jobs: Vec<_> = (0..3)
            .map(|index| Arc::new(jobs.make(&js.spec.replicated_jobs[0], index)))
            .collect();
        let workers = gather(js, &jobs, [], 0).workers;
        workers.values().map(|worker| worker.optional).collect::<Vec<_>>()
    };
    assert!(workers(&js).is_empty());
    for (phase, restart_attempt, works) in [
        (GangPhase::Scheduling, 0, false),
        (GangPhase::Scheduled, 1, false),
        (GangPhase::Scheduled, 0, true),
    ] {
        js = js.status(|status| {
            status.gangs = vec![GangStatus {
                name: "a".to_owned(),
                phase: phase.clone(),
                restart_attempt,
                ..GangStatus::default()
            }];
        });
        let expected: &[bool] = if works { &[false, false, true] } else { &[] };
        assert_eq!(workers(&js), expected);
    }
}

#[test]
fn a_recreated_pod_waits_until_the_status_shows_it() {
    let js = jobset([replicated_job("a", 2)]).restarting(RestartStrategy::InPlaceRestart, 3);
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    // The watch of JobSets lags behind: one of the two Jobs has been recreated already.
    let jobs = [Arc::new(jobs.make(&js.spec.replicated_jobs[0], 1))];
    let pods = |attempt| {
        let pod = PodSummary {
            uid: "uid".to_owned(),
            job: Some(js.job_name("a", 0)),
            index: Some(0),
            restart_attempt: Some(attempt),
            ..PodSummary::default()
        };
        let gathered = gather(&js, &jobs, [&pod], 0);
        assert_eq!(gathered.pods.len(), 1, "its node is heard");
        assert_eq!(gathered.old_pods, 0);
        gathered
            .workers
            .values()
            .map(|worker| worker.pods.len())
            .sum::<usize>()
    };
    assert_eq!((pods(0), pods(1)), (1, 0));
}

#[test]
fn a_job_that_has_succeeded_by_its_own_policy_has_no_worker_to_wait_for() {
    let js = jobset([replicated_job("a", 1)])
        .restarting(RestartStrategy::InPlaceRestart, 3)
        .with(|js| {
            let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
            job.success_policy = Some(Default::default());
            (job.completions, job.parallelism) = (Some(2), Some(2));
        });
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    let mut job = jobs.make(&js.spec.replicated_jobs[0], 0);
    let workers = |job: &Job| gather(&js, &[Arc::new(job.clone())], [], 0).workers;
    assert!(
        workers(&job)
            .values()
            .all(|worker| worker.ends_early && !worker.completed)
    );
    let said =
        json!({"completedIndexes": "0", "conditions": [{"type": "SuccessCriteriaMet", "status": "True"}]});
    job.status = Some(serde_json::from_value(said).unwrap());
    assert!(workers(&job).values().all(|worker| worker.completed));
}

#[test]
fn an_index_that_has_failed_for_good_is_no_longer_awaited() {
    let js = jobset([replicated_job("a", 1)])
        .restarting(RestartStrategy::InPlaceRestart, 3)
        .with(|js| {
            let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
            (job.completions, job.parallelism) = (Some(4), Some(4));
        });
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    let mut job = jobs.make(&js.spec.replicated_jobs[0], 0);
    let said = json!({"completedIndexes": "0", "failedIndexes": "2,3"});
    job.status = Some(serde_json::from_value(said).unwrap());
    let workers = gather(&js, &[Arc::new(job)], [], 0).workers;
    assert!(workers.values().all(|worker| !worker.keeps_pod));
    let over = workers.values().map(|worker| (worker.completed, worker.failed));
    let expected = [(true, false), (false, false), (false, true), (false, true)];
    assert_eq!(over.collect::<Vec<_>>(), expected);
}

#[test]
fn a_job_that_takes_the_deletion_of_a_pod_for_a_failure_keeps_its_pods() {
    let keeps = |spec: serde_json::Value| {
        let js = jobset([replicated_job("a", 1)])
            .restarting(RestartStrategy::InPlaceRestart, 3)
            .with(|js| {
                let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
                let stated: k8s_openapi::api::batch::v1::JobSpec =
                    serde_json::from_value(spec.clone()).unwrap();
                job.backoff_limit_per_index = stated.backoff_limit_per_index;
                job.pod_failure_policy = stated.pod_failure_policy;
            });
        let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
        let job = jobs.make(&js.spec.replicated_jobs[0], 0);
        let workers = gather(&js, &[Arc::new(job)], [], 0).workers;
        workers.into_values().next().unwrap().keeps_pod
    };
    let rule = |action: &str, operator: &str, code: i32| {
        let codes = json!({"operator": operator, "values": [code]});
        let rule = json!({"action": action, "onExitCodes": codes});
        json!({"template": {}, "podFailurePolicy": {"rules": [rule]}})
    };
    assert!(!keeps(json!({"template": {}})));
    assert!(keeps(json!({"template": {}, "backoffLimitPerIndex": 0})));
    assert!(keeps(rule("FailJob", "NotIn", 42)));
    assert!(keeps(rule("FailIndex", "In", 143)));
    assert!(keeps(rule("FailJob", "In", 137)));
    assert!(!keeps(rule("FailJob", "In", 42)));
    assert!(!keeps(rule("Ignore", "NotIn", 42)));
}

#[test]
fn a_job_ends_when_it_has_been_active_for_as_long_as_it_may() {
    let js = jobset([replicated_job("a", 1)])
        .restarting(RestartStrategy::InPlaceRestart, 3)
        .with(|js| {
            let job = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
            job.active_deadline_seconds = Some(60);
        });
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    let mut job = jobs.make(&js.spec.replicated_jobs[0], 0);
    let ends_at = |job: &Job| {
        let workers = gather(&js, &[Arc::new(job.clone())], [], 0).workers;
        workers.into_values().next().unwrap().ends_at
    };
    assert_eq!(ends_at(&job), None, "it has not started");
    job.status = Some(serde_json::from_value(json!({"startTime": "1970-01-01T00:01:00Z"})).unwrap());
    assert_eq!(ends_at(&job), Some(UnixNanos(120_000_000_000)));
}

#[test]
fn workers_of_a_ray_cluster_come_and_go_but_its_head_is_there_from_the_start() {
    let js = jobset([replicated_job("head", 1), replicated_job("workers", 1)])
        .restarting(RestartStrategy::InPlaceRestart, 3);
    let optional = |js: &JobSet| -> Vec<bool> {
        let jobs = Jobs::new(js, Features::default(), &Agents::ByNode);
        let made = js.spec.replicated_jobs.iter();
        let made: Vec<_> = made.map(|job| Arc::new(jobs.make(job, 0))).collect();
        let workers = gather(js, &made, [], 0).workers;
        workers.values().map(|worker| worker.optional).collect()
    };
    assert_eq!(optional(&js), [false, false]);
    let of_ray = js.with(|js| {
        let owner = json!([{"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r", "uid": "u", "controller": true}]);
        js.metadata.owner_references = Some(serde_json::from_value(owner).unwrap());
    });
    assert_eq!(optional(&of_ray), [false, true]);
}

#[test]
fn a_replicated_job_without_jobs_has_no_workers_to_wait_for() {
    let js = jobset([replicated_job("head", 1), replicated_job("workers", 0)])
        .restarting(RestartStrategy::InPlaceRestart, 3);
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    let head = Arc::new(jobs.make(&js.spec.replicated_jobs[0], 0));
    let gathered = gather(&js, &[head], [], 0);
    assert_eq!(gathered.finished_stages, ["workers".to_owned()].into());
    assert_eq!(gathered.unwanted_jobs, [js.job_name("workers", 0)].into());
}

/// A pod in the place of the only worker of the JobSet `js`, controlled by this Job.
fn pod(uid: &str, job_uid: Option<&str>, recreation: i32, succeeded: bool) -> PodSummary {
    PodSummary {
        name: uid.to_owned(),
        uid: uid.to_owned(),
        restart_attempt: Some(recreation),
        job: Some("js-a-0".to_owned()),
        job_uid: job_uid.map(str::to_owned),
        index: Some(0),
        agent: AgentPod {
            succeeded,
            ..AgentPod::default()
        },
        ..PodSummary::default()
    }
}

#[test]
fn a_worker_without_an_agent_has_no_worker_restarts() {
    let mut js = jobset([replicated_job("a", 2)]).restarting(RestartStrategy::InPlaceRestart, 3);
    let metadata = js.spec.replicated_jobs[0]
        .template
        .metadata
        .get_or_insert_default();
    let said = metadata.annotations.get_or_insert_default();
    said.insert(annotations::RESTART_SCOPE.to_owned(), "worker".to_owned());
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    let jobs: Vec<_> = (0..2)
        .map(|index| Arc::new(jobs.make(&js.spec.replicated_jobs[0], index)))
        .collect();
    let changed = PodSummary {
        obstacle: Some(Obstacle::SharedProcesses),
        ..pod("own", Some("job"), 0, false)
    };
    let workers = gather(&js, &jobs, [&changed], 0).workers;
    let found: Vec<_> = workers
        .values()
        .map(|worker| (worker.level, worker.scope))
        .collect();
    assert_eq!(
        found,
        [
            (RestartLevel::Container, Scope::Group),
            (RestartLevel::Process, Scope::Worker)
        ]
    );
}

/// Two workers of one Job each.
fn two(js: JobSet) -> (JobSet, Vec<Arc<Job>>) {
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    let made = (0..2).map(|index| Arc::new(jobs.make(&js.spec.replicated_jobs[0], index)));
    let made = made.collect();
    (js, made)
}

/// The levels of the workers, and true if they cannot restart in place.
fn said(of: &(JobSet, Vec<Arc<Job>>), pods: &[&PodSummary]) -> Vec<(RestartLevel, bool)> {
    let workers = gather(&of.0, &of.1, pods.iter().copied(), 0).workers;
    workers
        .values()
        .map(|worker| (worker.level, worker.stays_down))
        .collect()
}

#[test]
fn a_pod_that_was_changed_so_that_it_can_have_no_agent_cannot_be_restarted_in_place() {
    let supervised = jobset([replicated_job("a", 2)]).restarting(RestartStrategy::InPlaceRestart, 3);
    let plain = two(supervised.clone().annotated(annotations::SUPERVISE, "none"));
    let supervised = two(supervised);
    let unchanged = pod("own", Some("job"), 0, false);
    let changed = PodSummary {
        obstacle: Some(Obstacle::SharedProcesses),
        ..unchanged.clone()
    };
    // Its end may be seen first.
    let ended = PodSummary {
        agent: AgentPod {
            failed: true,
            ..AgentPod::default()
        },
        ..changed.clone()
    };
    let (in_place, by_container, made_anew) = (
        (RestartLevel::Process, false),
        (RestartLevel::Container, false),
        (RestartLevel::Container, true),
    );
    assert_eq!(said(&supervised, &[&unchanged]), [in_place, in_place]);
    assert_eq!(said(&supervised, &[&changed]), [made_anew, in_place]);
    assert_eq!(said(&supervised, &[&ended]), [made_anew, in_place]);
    // An unchanged pod that takes its place restarts in place.
    let next = PodSummary {
        uid: "next".to_owned(),
        ..unchanged
    };
    for order in [[&next, &ended], [&ended, &next]] {
        assert_eq!(said(&supervised, &order), [in_place, in_place]);
    }
    // If the template says so, all its workers restart by their containers.
    assert_eq!(said(&plain, &[&changed]), [by_container, by_container]);
    assert_eq!(said(&plain, &[&ended]), [by_container, by_container]);
}

#[test]
fn a_pod_that_no_job_controls_blocks_and_completes_no_work() {
    let js = jobset([replicated_job("a", 1)]).restarting(RestartStrategy::InPlaceRestart, 3);
    let jobs = Jobs::new(&js, Features::default(), &Agents::ByNode);
    let mut job = jobs.make(&js.spec.replicated_jobs[0], 0);
    job.metadata.uid = Some("job".to_owned());
    let job = Arc::new(job);
    let seen = |pods: &[PodSummary]| {
        let gathered = gather(&js, &[Arc::clone(&job)], pods, 1);
        assert!(gathered.workers.is_empty(), "of another attempt");
        gathered.old_pods
    };
    assert_eq!(seen(&[pod("left behind", None, 0, false)]), 1);
    assert_eq!(seen(&[pod("its Job is gone", Some("job before"), 0, false)]), 1);

    let seen = |pods: &[PodSummary]| {
        let gathered = gather(&js, &[Arc::clone(&job)], pods, 0);
        let worker = gathered.workers.into_values().next().unwrap();
        let live: Vec<String> = worker.pods.into_iter().map(|pod| pod.uid).collect();
        (live.join(" "), worker.completed)
    };
    let own = || pod("own", Some("job"), 0, false);
    assert_eq!(seen(&[own()]), ("own".to_owned(), false));
    assert_eq!(seen(&[pod("own", Some("job"), 0, true)]), (String::new(), true));
    // A succeeded pod does not complete the worker. The worker of a live pod may still run: its Job
    // may have been deleted without it.
    let left = |succeeded| pod("left", None, 0, succeeded);
    assert_eq!(seen(&[own(), left(true)]), ("own".to_owned(), false));
    assert_eq!(seen(&[own(), left(false)]), ("own left".to_owned(), false));
    // The Job was recreated with the same name: its former pods may still work, but have not done
    // the work of the new Job.
    let before = |succeeded| pod("before", Some("job before"), 0, succeeded);
    assert_eq!(seen(&[own(), before(false)]), ("own before".to_owned(), false));
    assert_eq!(seen(&[own(), before(true)]), ("own".to_owned(), false));
}

#[test]
fn a_jobset_that_is_too_large_has_no_expected_workers() {
    let sized = |jobs: i32, pods: i32| {
        jobset([replicated_job("a", jobs)])
            .restarting(RestartStrategy::InPlaceRestart, 3)
            .with(|js| {
                let spec = js.spec.replicated_jobs[0].template.spec.as_mut().unwrap();
                (spec.parallelism, spec.completions) = (Some(pods), Some(pods));
            })
    };
    for (jobs, pods, expected) in [(2, 3, 6), (60, 100_000, 0), (i32::MAX, i32::MAX, 0)] {
        let js = sized(jobs, pods);
        let made = Jobs::new(&js, Features::default(), &Agents::ByNode).make(&js.spec.replicated_jobs[0], 0);
        let gathered = gather(&js, &[Arc::new(made)], [], 0);
        assert_eq!(gathered.workers.len(), expected, "{jobs} x {pods}");
        assert_eq!(gathered.policy.max_restarts, 3);
    }
}
