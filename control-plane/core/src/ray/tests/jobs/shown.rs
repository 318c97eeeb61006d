//! The driver's output is shown to its end.

use super::*;

/// A job that Ray runs, with a submitter whose pod is ready.
fn showing(spec: Value) -> Stage {
    let mut stage = running(spec);
    stage.submitter.as_mut().unwrap().status = Some(JobStatus {
        active: Some(1),
        ready: Some(1),
        ..JobStatus::default()
    });
    stage
}

#[test]
fn what_comes_after_the_end_waits_for_the_submitter() {
    for (says, type_, reason, phase) in [
        ("SUCCEEDED", "Complete", "", Phase::Complete),
        ("FAILED", "Failed", "PodFailurePolicy", Phase::Retrying),
        ("STOPPED", "Failed", "PodFailurePolicy", Phase::Complete),
    ] {
        let mut stage = showing(json!({"backoffLimit": 1, "shutdownAfterJobFinishes": true}));
        stage.says(says).wait(30);
        assert_eq!(
            (stage.phase(), stage.status().job_status.as_str()),
            (Phase::Running, says)
        );
        assert!(stage.submitter.is_some() && stage.status().end_time.is_some());
        let plan = stage.plan();
        assert_eq!(plan.requeue_after, Some(SignedDuration::from_secs(2)));
        // Whatever happens to Ray or is requested meanwhile.
        stage.ray = Ray::Unreachable;
        stage.job.spec.active_deadline_seconds = Some(1);
        stage.wait(10);
        assert_eq!(stage.phase(), Phase::Running);
        let submitter = stage.submitter.as_mut().unwrap();
        submitter.status.as_mut().unwrap().conditions =
            serde_json::from_value(json!([{"type": type_, "status": "True", "reason": reason}])).unwrap();
        stage.step();
        let ended = stage.status();
        assert_eq!(ended.job_deployment_status, Some(phase), "{says}");
        let is_over = ended.job_deployment_status != Some(Phase::Retrying);
        assert_eq!(ended.end_time.is_some(), is_over);
    }
}

#[test]
fn it_does_not_wait_for_ever() {
    for (says, phase) in [("SUCCEEDED", Phase::Complete), ("FAILED", Phase::Failed)] {
        let mut stage = showing(json!({}));
        stage.says(says).wait(59);
        assert_eq!(stage.phase(), Phase::Running);
        stage.wait(1);
        assert_eq!(
            (stage.phase(), stage.status().message.as_str()),
            (phase, &*format!("it is {says}"))
        );
    }
}

#[test]
fn a_submitter_that_is_suspended_shows_nothing() {
    let mut stage = showing(json!({"shutdownAfterJobFinishes": true}));
    let spec = stage.submitter.as_mut().unwrap().spec.as_mut().unwrap();
    spec.suspend = Some(true);
    stage.says("SUCCEEDED");
    assert_eq!(stage.phase(), Phase::Complete);
    assert!(stage.cluster.is_none() && stage.submitter.is_some());
}
