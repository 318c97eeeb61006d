//! Failed attempts, and those that follow.

use super::*;

#[test]
fn kuberay_4668_4971_a_retry_keeps_the_cluster() {
    let mut stage = running(json!({"maxRetries": 1}));
    stage.says("FAILED");
    assert_eq!((stage.phase(), stage.status().num_retries), (Phase::Retrying, 1));
    let id = stage.status().job_id.clone();
    assert_eq!(stage.restarts, std::slice::from_ref(&id));
    stage.session("s1");
    assert_eq!(
        (stage.phase(), stage.status().session.as_str()),
        (Phase::Running, "s1")
    );
    assert_eq!(stage.clusters.len(), 1);
    assert_eq!(stage.submitted.last(), Some(&id));
    stage.says("RUNNING").says("SUCCEEDED");
    assert_eq!(
        (stage.phase(), stage.status().succeeded, stage.status().failed),
        (Phase::Complete, 1, 1)
    );
}

#[test]
fn kuberay_5211_attempts_never_overlap() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.says("FAILED");
    assert!(stage.submitter.is_none());
    // It is still the old Ray, even if it is ready: nothing is submitted to it.
    stage.session("s0").wait(60);
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Retrying, 1));
    stage.session("s1");
    assert_eq!(stage.submitted.len(), 2);
    assert_ne!(stage.submitted[0], stage.submitted[1]);
}

#[test]
fn kuberay_5211_a_ray_that_still_runs_the_previous_attempt_is_restarted() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.ray = Ray::Unreachable;
    stage.settle().wait(301);
    assert_eq!(stage.phase(), Phase::Retrying);
    let asked = stage.restarts.clone();
    // It is back under another name, with the job.
    stage.ray = Ray::Reached {
        session: "s1".to_owned(),
        job: None,
    };
    stage.says("RUNNING").wait(60);
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Retrying, 1));
    assert_eq!((asked.len(), &stage.restarts), (1, &asked));
    stage.session("s2");
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Running, 2));
}

#[test]
fn a_retry_on_a_new_cluster_waits_for_the_old_one_to_be_gone() {
    let mut stage = running(json!({"backoffLimit": 1, "retryPolicy": "NewCluster"}));
    stage.ray = Ray::Reached {
        session: "s0".to_owned(),
        job: Some(RayInfo {
            status: "FAILED".to_owned(),
            ..RayInfo::default()
        }),
    };
    stage.step();
    stage.step();
    let plan = stage.step();
    assert!(plan.delete_cluster.is_some() && plan.create_cluster.is_none());
    stage.settle();
    assert_eq!((stage.clusters.len(), stage.phase()), (2, Phase::Initializing));
    assert_ne!(stage.clusters[0], stage.clusters[1]);
    stage.runs("s0");
    assert_eq!(stage.submitted.len(), 2);
}

#[test]
fn a_start_in_place_that_never_comes_becomes_a_new_cluster() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.says("FAILED").wait(179);
    assert_eq!(stage.clusters.len(), 1);
    stage.wait(2);
    assert_eq!((stage.clusters.len(), stage.phase()), (2, Phase::Initializing));
}

#[test]
fn kuberay_1489_3903_a_restarted_head_is_a_failed_attempt() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.ray = Ray::Unreachable;
    stage.settle();
    assert_eq!(stage.phase(), Phase::Running);
    stage.session("s1");
    // It is a new Ray already, and needs no restart.
    assert_eq!((stage.phase(), stage.status().num_retries), (Phase::Running, 1));
    assert!(stage.restarts.is_empty() && stage.submitted.len() == 2);
    stage.session("s2");
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "HeadRestarted")
    );
}

#[test]
fn a_session_that_was_not_written_down_is_that_of_the_ray_that_knows_the_job() {
    let mut stage = running(json!({}));
    stage.job.status.as_mut().unwrap().session.clear();
    stage.says("RUNNING");
    assert_eq!(
        (
            stage.phase(),
            stage.status().session.as_str(),
            stage.status().failed
        ),
        (Phase::Running, "s0", 0)
    );
    // From then on a new one is noticed.
    stage.session("s1");
    assert_eq!(stage.status().reason, "HeadRestarted");
}

#[test]
fn kuberay_1489_ray_that_stays_out_of_reach_is_not_waited_for_for_ever() {
    let mut stage = running(json!({}));
    stage.ray = Ray::Unreachable;
    stage.settle().wait(299);
    assert_eq!(stage.phase(), Phase::Running);
    stage.wait(2);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "JobStatusCheckTimeoutExceeded")
    );
}

/// A job that Ray runs, with a submitter whose pod is ready.
fn seen_by_its_submitter(spec: Value) -> Stage {
    let mut stage = running(spec);
    let submitter = stage.submitter.as_mut().unwrap();
    submitter.status = Some(JobStatus {
        active: Some(1),
        ready: Some(1),
        ..JobStatus::default()
    });
    stage
}

#[test]
fn a_dashboard_that_only_the_control_plane_does_not_reach_ends_nothing() {
    for out_of_reach in [Ray::Unreachable, Ray::Denied("403 Forbidden".to_owned())] {
        let mut stage = seen_by_its_submitter(json!({}));
        stage.ray = out_of_reach;
        stage.settle().wait(3600);
        let status = stage.status();
        assert_eq!(
            (stage.phase(), &status.unreachable_since),
            (Phase::Running, &None)
        );
        assert!(status.message.contains("keeps running"), "{}", status.message);
        assert_eq!(stage.plan().requeue_after, Some(SignedDuration::from_secs(15)));
        // Ray is back, and reports the job itself.
        stage.ray = Ray::Reached {
            session: "s0".to_owned(),
            job: None,
        };
        stage.says("RUNNING");
        assert_eq!(stage.status().message, "it is RUNNING");
        assert_eq!(stage.plan().requeue_after, Some(SignedDuration::from_secs(2)));
        // Until then the end that the submitter has seen counts.
        stage.ray = Ray::Unreachable;
        stage.wait(3600).submitter_ends("Complete", "");
        assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Complete, 1));
    }
}

#[test]
fn time_counts_from_when_the_head_or_the_submitter_is_gone_too() {
    for without in ["head", "submitter"] {
        let mut stage = seen_by_its_submitter(json!({}));
        stage.ray = Ray::Unreachable;
        stage.settle().wait(3600);
        match without {
            "head" => stage.cluster.as_mut().unwrap().status = None,
            _ => stage.submitter.as_mut().unwrap().status = None,
        }
        stage.settle().wait(299);
        assert_eq!(stage.phase(), Phase::Running, "{without}");
        stage.wait(2);
        assert_eq!(
            stage.status().reason,
            "JobStatusCheckTimeoutExceeded",
            "{without}"
        );
    }
}

#[test]
fn a_submitter_that_is_lost_is_replaced_while_the_dashboard_is_out_of_reach() {
    let mut stage = seen_by_its_submitter(json!({}));
    stage.ray = Ray::Unreachable;
    stage.submitter.as_mut().unwrap().status = Some(JobStatus {
        active: Some(0),
        terminating: Some(1),
        ..JobStatus::default()
    });
    stage.settle().wait(61);
    let id = stage.status().job_id.clone();
    assert_eq!(
        (stage.phase(), stage.submitted.as_slice()),
        (Phase::Running, [id.clone(), id].as_slice())
    );
}

#[test]
fn a_deadline_holds_if_the_dashboard_is_unreachable() {
    let mut stage = seen_by_its_submitter(json!({"activeDeadlineSeconds": 1000}));
    stage.ray = Ray::Unreachable;
    stage.settle().wait(999);
    assert_eq!(stage.phase(), Phase::Running);
    stage.wait(1);
    assert_eq!(stage.status().reason, "DeadlineExceeded");
}

#[test]
fn a_ray_that_knows_the_attempt_before_is_the_same_one_whatever_is_known_of_it() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.ray = Ray::Unreachable;
    stage.job.status.as_mut().unwrap().session.clear();
    stage.settle().wait(301);
    assert_eq!(stage.phase(), Phase::Retrying);
    stage.ray = Ray::Reached {
        session: "s0".to_owned(),
        job: Some(RayInfo {
            status: "RUNNING".to_owned(),
            ..RayInfo::default()
        }),
    };
    stage.wait(60);
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Retrying, 1));
    // In the end the cluster is given up with everything on it.
    stage.wait(180);
    assert_eq!((stage.phase(), stage.clusters.len()), (Phase::Initializing, 2));
}

#[test]
fn ray_that_does_not_answer_is_asked_ever_less_often() {
    let mut stage = running(json!({}));
    stage.ray = Ray::Unreachable;
    for (waits, seconds) in [(0, 2), (20, 2), (80, 10), (100, 15)] {
        stage.wait(waits);
        let after = stage.plan().requeue_after;
        assert_eq!(after, Some(SignedDuration::from_secs(seconds)), "{waits}");
    }
    stage.session("s0").says("RUNNING");
    assert_eq!(stage.plan().requeue_after, Some(SignedDuration::from_secs(2)));
}

#[test]
fn a_moment_out_of_reach_is_forgotten() {
    let mut stage = running(json!({}));
    for _ in 0..3 {
        stage.ray = Ray::Unreachable;
        stage.settle().wait(200);
        stage.ray = Ray::Reached {
            session: "s0".to_owned(),
            job: None,
        };
        stage.says("RUNNING");
    }
    assert_eq!(stage.phase(), Phase::Running);
}

#[test]
fn kuberay_4637_a_head_that_never_starts_fails_the_job() {
    let mut stage = Stage::new(json!({"backoffLimit": 1}));
    stage.settle();
    let restarted = |stage: &mut Stage, times: i32| {
        let status = stage.jobset.as_mut().unwrap().status.get_or_insert_default();
        status.in_place_restart.get_or_insert_default().restarts = times;
        stage.settle();
    };
    restarted(&mut stage, 3);
    assert_eq!(stage.phase(), Phase::Initializing);
    restarted(&mut stage, 4);
    // The next attempt has its own cluster at once, and its own count of restarts.
    assert_eq!((stage.phase(), stage.clusters.len()), (Phase::Initializing, 2));
    assert_eq!((stage.status().num_retries, stage.restarts.len()), (1, 0));
    restarted(&mut stage, 4);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "SubmissionFailed")
    );
    assert!(
        stage.status().message.contains("4 times"),
        "{}",
        stage.status().message
    );
}

#[test]
fn kuberay_4637_a_head_whose_pods_fail_before_they_start_fails_the_job() {
    let mut stage = Stage::new(json!({"backoffLimit": 1}));
    stage.settle();
    for attempt in 1..=2 {
        stage.head_failures = 3;
        stage.settle();
        assert_eq!(
            (stage.phase(), stage.clusters.len()),
            (Phase::Initializing, attempt)
        );
        assert_eq!(stage.plan().requeue_after, Some(SignedDuration::from_secs(15)));
        stage.head_failures = 4;
        stage.settle();
    }
    let status = stage.status();
    assert_eq!(
        (stage.phase(), status.reason.as_str(), status.failed),
        (Phase::Failed, "SubmissionFailed", 2)
    );
    assert!(
        status.message.contains("the head has failed 4 times"),
        "{}",
        status.message
    );
    assert!(!status.needs_new_cluster);
}

#[test]
fn failures_of_a_head_that_came_up_count_for_the_attempt_that_they_are_of() {
    let mut stage = Stage::new(json!({"backoffLimit": 1}));
    stage.settle();
    stage.head_failures = 3;
    stage.runs("s0");
    stage.says("FAILED").session("s1");
    assert_eq!((stage.phase(), stage.clusters.len()), (Phase::Running, 1));
    assert_eq!(stage.status().head_failures_before, Some(3));
    // The head goes before the next attempt is submitted: its first failure.
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.head_failures = 50;
    stage.says("FAILED");
    stage.ray = Ray::Reached {
        session: "s1".to_owned(),
        job: None,
    };
    stage.step();
    assert_eq!(stage.phase(), Phase::Initializing);
    stage.cluster.as_mut().unwrap().status = None;
    stage.head_failures = 51;
    stage.settle();
    assert_eq!((stage.phase(), stage.clusters.len()), (Phase::Initializing, 1));
}

#[test]
fn failures_of_a_head_are_those_of_its_job_and_of_the_containers_of_its_present_pod() {
    let jobset = |uid: &str| {
        let mut jobset = compile(&cluster(json!({})));
        jobset.metadata.uid = Some(uid.to_owned());
        jobset
    };
    let job = |name: &str, uid: &str, failed: i32| {
        let mut job = Job::default();
        job.metadata.name = Some(name.to_owned());
        job.metadata.uid = Some(uid.to_owned());
        let owner = json!([{"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "name": "rc", "uid": "uid-js", "controller": true}]);
        job.metadata.owner_references = serde_json::from_value(owner).unwrap();
        job.status = Some(JobStatus {
            failed: Some(failed),
            ..JobStatus::default()
        });
        Arc::new(job)
    };
    let pod = |job: &str, restarts: i32, failed: bool| PodSummary {
        job_uid: Some(job.to_owned()),
        agent: AgentPod {
            failed,
            container_restarts: restarts,
            ..AgentPod::default()
        },
        ..PodSummary::default()
    };
    let jobs = [job("rc-small-0", "uid-small", 7), job("rc-head-0", "uid-head", 2)];
    let pods = [
        pod("uid-small", 9, false),
        pod("uid-head", 5, true),
        pod("uid-head", 1, false),
        // Its Job counts it already.
        PodSummary {
            deleting: true,
            ..pod("uid-head", 9, false)
        },
    ];
    assert_eq!(head_failures(&jobset("uid-js"), &jobs, &pods), 3);
    assert_eq!(head_failures(&jobset("uid-js"), &jobs, []), 2);
    // A former cluster's.
    assert_eq!(head_failures(&jobset("uid-another"), &jobs, &pods), 0);
    assert_eq!(head_failures(&jobset("uid-js"), &jobs[..1], &pods), 0);
}

#[test]
fn restarts_of_workers_do_not_fail_a_job_whose_head_is_up() {
    let mut stage = Stage::new(json!({"waitForAllPodsHealthy": true}));
    stage.settle().head_is_ready();
    let status = stage.jobset.as_mut().unwrap().status.get_or_insert_default();
    status.in_place_restart.get_or_insert_default().restarts = 50;
    stage.settle();
    assert_eq!(stage.phase(), Phase::Initializing);
}

#[test]
fn kuberay_4637_a_cluster_that_fails_uses_up_the_retries() {
    let mut stage = Stage::new(json!({"backoffLimit": 2}));
    stage.settle();
    for _ in 0..3 {
        let status = stage.cluster.as_mut().unwrap().status.get_or_insert_default();
        status.state = Some(RayClusterState::failed);
        stage.settle();
    }
    assert_eq!(
        (stage.phase(), stage.clusters.len(), stage.status().failed),
        (Phase::Failed, 3, 3)
    );
}

#[test]
fn a_cluster_that_is_being_deleted_is_no_place_for_a_job() {
    let mut stage = Stage::new(json!({}));
    stage.settle().head_is_ready();
    stage.cluster.as_mut().unwrap().metadata.deletion_timestamp = Some(Time(at(0)));
    stage.session("s0");
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Initializing, 0));
    assert!(stage.plan().requeue_after.is_some());
    stage.wait(61);
    assert!(
        stage.status().message.contains("waiting until"),
        "{:?}",
        stage.status()
    );
    stage.cluster = None;
    stage.settle();
    assert_eq!((stage.phase(), stage.clusters.len()), (Phase::Initializing, 2));
    assert_eq!(stage.status().message, "");
}

#[test]
fn the_end_of_a_job_that_is_between_two_attempts_stops_the_one_that_was_made() {
    let first = |limit: Value| {
        let mut stage = running(limit);
        let id = stage.status().job_id.clone();
        // Ray was away for long, and is back with the job.
        stage.ray = Ray::Unreachable;
        stage.settle().wait(301);
        assert_eq!((stage.phase(), stage.status().num_retries), (Phase::Retrying, 1));
        stage.session("s0").says("RUNNING");
        assert_eq!(question(&stage.job).unwrap().1, id);
        (stage, id)
    };
    let (mut stage, id) = first(json!({"backoffLimit": 1, "activeDeadlineSeconds": 400}));
    stage.wait(100);
    assert_eq!((stage.phase(), &stage.status().job_id), (Phase::Failed, &id));
    assert_eq!(stage.status().session, "s0");
    // Ray is asked to stop the job until it has done so.
    let told = stage.stopped.len();
    stage.wait(2);
    assert!(stage.stopped.len() > told && stage.stopped.iter().all(|stopped| *stopped == id));
    stage.says("STOPPED");
    assert_eq!(stage.status().job_status, "STOPPED");

    let (mut stage, id) = first(json!({"backoffLimit": 1}));
    stage.job.metadata.deletion_timestamp = Some(Time(at(stage.seconds)));
    assert_eq!(stage.step().stop, Some(id));
    assert!(stage.job.metadata.finalizers.is_some());
    stage.says("STOPPED");
    assert!(stage.job.metadata.finalizers.is_none());
}
