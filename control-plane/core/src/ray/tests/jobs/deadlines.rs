//! Deadlines for the start and the end of a job.

use super::*;

#[test]
fn the_deadline_beats_the_retries_and_stops_the_job() {
    let mut stage = running(json!({"backoffLimit": 5, "activeDeadlineSeconds": 100}));
    stage.wait(99);
    assert_eq!(stage.phase(), Phase::Running);
    stage.wait(1);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "DeadlineExceeded")
    );
    assert!(stage.status().deadline_exceeded && stage.status().num_retries == 0);
    assert!(!stage.stopped.is_empty() && stage.restarts.is_empty());
    // Ray is asked again until it has stopped the job.
    let told = stage.stopped.len();
    stage.wait(2);
    assert!(stage.stopped.len() > told);
    stage.says("STOPPED");
    let told = stage.stopped.len();
    assert_eq!(
        (stage.wait(60).stopped.len(), stage.status().job_status.as_str()),
        (told, "STOPPED")
    );
}

#[test]
fn the_deadline_holds_while_a_retry_is_prepared() {
    let mut stage = running(json!({"backoffLimit": 5, "activeDeadlineSeconds": 100}));
    let first = stage.status().job_id.clone();
    stage.says("FAILED").wait(100);
    let status = stage.status();
    assert_eq!(
        (stage.phase(), status.reason.as_str()),
        (Phase::Failed, "DeadlineExceeded")
    );
    // The attempt that was prepared was never made.
    assert_eq!(
        (status.num_retries, status.failed, &status.job_id),
        (0, 1, &first)
    );
    assert_eq!(stage.submitted, [first]);
}

#[test]
fn the_pre_running_deadline_is_over_once_the_job_runs() {
    let limit = json!({"preRunningDeadlineSeconds": 30, "backoffLimit": 2});
    let mut stage = Stage::new(limit.clone());
    stage.settle().wait(30);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "PreRunningDeadlineExceeded")
    );
    let mut stage = running(limit.clone());
    stage.wait(60);
    assert_eq!(stage.phase(), Phase::Running);
    // The deadline does not apply while the next attempt is prepared either.
    stage.says("FAILED").wait(60);
    assert_eq!(stage.phase(), Phase::Retrying);
    // An attempt that failed before its submission does not count as submitted.
    let mut stage = Stage::new(limit);
    stage.settle();
    let cluster = stage.cluster.as_mut().unwrap();
    cluster.status.get_or_insert_default().state = Some(RayClusterState::failed);
    stage.settle();
    assert_eq!(
        (stage.phase(), stage.status().num_retries),
        (Phase::Initializing, 1)
    );
    stage.wait(30);
    assert_eq!(stage.status().reason, "PreRunningDeadlineExceeded");
}

#[test]
fn the_pre_running_deadline_does_not_stop_what_ray_has_taken() {
    for (mode, known) in [("K8sJobMode", false), ("K8sJobMode", true), ("HTTPMode", true)] {
        let mut stage = Stage::new(json!({"preRunningDeadlineSeconds": 30, "submissionMode": mode}));
        stage.settle().head_is_ready().settle();
        stage.ray = Ray::Reached {
            session: "s0".to_owned(),
            job: None,
        };
        stage.step();
        let before = stage.job.status.clone();
        stage.step();
        // It was submitted at the last moment, and the status could not be written.
        stage.job.status = before;
        assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Initializing, 1));
        if known {
            stage.submitter = None;
            stage.ray = Ray::Reached {
                session: "s0".to_owned(),
                job: Some(RayInfo {
                    status: "RUNNING".to_owned(),
                    ..RayInfo::default()
                }),
            };
        }
        stage.seconds = 30;
        stage.step();
        assert_eq!(stage.phase(), Phase::Running, "{mode} {known}");
        assert!(stage.stopped.is_empty());
    }
}

#[test]
fn a_deadline_is_distinct_from_the_next_request_to_the_dashboard() {
    let poll = Some(SignedDuration::from_secs(2));
    let plan = running(json!({})).plan();
    assert_eq!((plan.requeue_after, plan.deadline), (poll, None));
    let mut stage = running(json!({"activeDeadlineSeconds": 100, "preRunningDeadlineSeconds": 30}));
    stage.seconds = 40;
    let plan = stage.plan();
    assert_eq!(
        (plan.requeue_after, plan.deadline),
        (poll, Some(SignedDuration::from_secs(60)))
    );
    let mut stage = Stage::new(json!({"activeDeadlineSeconds": 100, "preRunningDeadlineSeconds": 30}));
    stage.settle();
    assert_eq!(stage.plan().deadline, Some(SignedDuration::from_secs(30)));
}
