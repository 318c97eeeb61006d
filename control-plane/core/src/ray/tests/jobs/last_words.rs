//! Which reports of the end of a job count, and what must happen before a cluster is deleted.

use super::*;

/// A submitter that runs a command of the user.
fn own_command() -> Value {
    json!({"submitterPodTemplate": {"spec": {"containers": [{"name": "mine", "command": ["submit-it"]}]}}})
}

#[test]
fn a_cluster_is_kept_for_a_submitter_that_still_shows_the_output() {
    let mut stage = running(json!({"shutdownAfterJobFinishes": true}));
    stage.says("SUCCEEDED").wait(59);
    assert!(stage.cluster.is_some());
    stage.submitter_ends("Complete", "");
    assert!(stage.cluster.is_none() && stage.submitter.is_some());
}

#[test]
fn a_submitter_that_never_ends_goes_with_its_cluster() {
    let mut stage = running(json!({"shutdownAfterJobFinishes": true}));
    stage.says("SUCCEEDED").wait(60);
    assert!(stage.cluster.is_none() && stage.submitter.is_none());
    assert_eq!(stage.phase(), Phase::Complete);
}

#[test]
fn what_the_submitter_has_seen_counts_although_the_head_was_restarted() {
    for (type_, reason, status) in [
        ("Complete", "", "SUCCEEDED"),
        ("Failed", "PodFailurePolicy", "FAILED"),
    ] {
        let mut stage = running(json!({}));
        stage.ray = Ray::Reached {
            session: "another".to_owned(),
            job: None,
        };
        stage.submitter_ends(type_, reason);
        assert_eq!(stage.status().job_status, status);
    }
}

#[test]
fn a_job_that_ended_in_time_has_ended_however_late_that_is_seen() {
    let mut stage = running(json!({"activeDeadlineSeconds": 60}));
    stage.seconds += 100;
    stage.says("SUCCEEDED");
    assert_eq!(stage.phase(), Phase::Complete);
    let mut stage = running(json!({"activeDeadlineSeconds": 60, "backoffLimit": 3}));
    stage.seconds += 100;
    stage.says("FAILED");
    assert_eq!(
        (stage.phase(), stage.status().deadline_exceeded),
        (Phase::Failed, true)
    );
}

#[test]
fn time_without_a_leader_does_not_count_as_unreachable() {
    let mut stage = running(json!({}));
    stage.ray = Ray::Unreachable;
    stage.settle();
    // The control plane was away.
    stage.seconds += 1000;
    stage.watched_since = stage.seconds;
    stage.settle();
    assert_eq!(stage.phase(), Phase::Running);
    stage.wait(301);
    assert_eq!(stage.status().reason, "JobStatusCheckTimeoutExceeded");
}

#[test]
fn an_attempt_that_was_given_up_is_stopped_when_ray_is_back() {
    let mut stage = running(json!({}));
    stage.ray = Ray::Unreachable;
    stage.settle().wait(301);
    assert_eq!(stage.phase(), Phase::Failed);
    stage.ray = Ray::Reached {
        session: stage.status().session.clone(),
        job: None,
    };
    stage.says("RUNNING");
    assert_eq!(stage.stopped.last(), Some(&stage.status().job_id));
}

#[test]
fn the_exit_of_a_users_own_command_does_not_tell_how_the_job_ended() {
    for (type_, reason) in [
        ("Complete", ""),
        ("Failed", "PodFailurePolicy"),
        ("Failed", "BackoffLimitExceeded"),
    ] {
        let mut stage = running(own_command());
        stage.says("RUNNING").submitter_ends(type_, reason);
        let submitted = stage.submitted.len();
        assert_eq!((stage.phase(), submitted), (Phase::Running, 1));
        stage.ray = Ray::Unreachable;
        stage.settle().wait(60);
        assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Running, 1));
    }
}

#[test]
fn a_dashboard_that_is_never_reached_fails_the_job() {
    let mut stage = Stage::new(json!({}));
    stage.settle().head_is_ready();
    stage.ray = Ray::Unreachable;
    stage.settle();
    let message = &stage.status().message;
    assert!(message.contains("unreachable"), "{message}");
    stage.wait(301);
    assert_eq!(
        (stage.phase(), stage.status().reason.as_str()),
        (Phase::Failed, "JobStatusCheckTimeoutExceeded")
    );
}

#[test]
fn what_ray_refuses_to_take_fails_the_attempt() {
    let mut stage = Stage::new(json!({"submissionMode": "HTTPMode"}));
    stage.settle().head_is_ready();
    stage.ray = Ray::Refused("runtime_env: no such field".to_owned());
    stage.settle();
    let status = stage.status();
    assert_eq!(
        (status.job_deployment_status.clone(), status.reason.as_str()),
        (Some(Phase::Failed), "SubmissionFailed")
    );
    assert!(status.message.contains("no such field"), "{}", status.message);
}

#[test]
fn a_job_of_another_owner_fails_the_rayjob_and_a_leftover_one_is_awaited() {
    let named = |owners: Value| {
        let mut stage = Stage::new(json!({}));
        stage.settle().head_is_ready();
        let job =
            json!({"metadata": {"name": "rj", "namespace": "ns", "uid": "u", "ownerReferences": owners}});
        stage.submitter = Some(serde_json::from_value(job).unwrap());
        stage.step();
        stage
    };
    let stage = named(json!([]));
    assert_eq!(stage.phase(), Phase::Failed);
    assert!(stage.status().message.contains("another owner"));
    let left = json!([{"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "rj", "uid": "former", "controller": true}]);
    assert_eq!(named(left).phase(), Phase::Initializing);
}
