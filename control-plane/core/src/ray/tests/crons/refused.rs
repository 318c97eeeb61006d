//! RayCronJobs that are invalid, or belong to another controller.

use super::*;

#[test]
fn a_spec_that_cannot_be_is_refused_until_it_can() {
    let mut stage = Stage::new(json!({"schedule": "bad", "jobTemplate": {"submissionMode": "SidecarMode"}}));
    stage.wait(120);
    assert!(stage.minutes().is_empty());
    let condition = stage.status().conditions[0].clone();
    assert_eq!(condition.type_, conditions::VALIDATION_FAILED);
    assert!(
        condition.message.contains("spec.schedule")
            && condition.message.contains("spec.jobTemplate.submissionMode"),
        "{}",
        condition.message
    );
    assert_eq!(stage.told.len(), 1, "{:?}", stage.told);
    assert_eq!(
        stage.heard("InvalidRayCronJobSpec"),
        Some(condition.message.as_str())
    );
    stage.cron.spec = Stage::new(json!({})).cron.spec;
    stage.settle();
    assert_eq!((stage.minutes(), stage.status().conditions.len()), (vec![2], 0));
}

#[test]
fn each_mistake_is_named_by_its_field() {
    let wrong = |spec: Value| {
        let mut stage = Stage::new(spec);
        stage.settle();
        stage
            .heard("InvalidRayCronJobSpec")
            .and_then(|message| message.strip_prefix("The RayCronJob spec is invalid: "))
            .unwrap_or_default()
            .to_owned()
    };
    for (spec, expected) in [
        (json!({"schedule": ""}), "spec.schedule: "),
        (
            json!({"schedule": "0 0 30 2 *"}),
            "spec.schedule: invalid cron schedule: no time matches it",
        ),
        (
            json!({"timeZone": "Mars/Phobos"}),
            "spec.timeZone: invalid time zone: unknown time zone Mars/Phobos",
        ),
        (
            json!({"concurrencyPolicy": "Queue"}),
            "spec.concurrencyPolicy: Queue is not supported",
        ),
        (
            json!({"startingDeadlineSeconds": -1}),
            "spec.startingDeadlineSeconds: must be",
        ),
        (
            json!({"successfulJobsHistoryLimit": -1}),
            "spec.successfulJobsHistoryLimit: must be",
        ),
        (
            json!({"failedJobsHistoryLimit": -1}),
            "spec.failedJobsHistoryLimit: must be",
        ),
        (
            json!({"jobTemplate": {"entrypoint": ""}}),
            "spec.jobTemplate.entrypoint: must be set",
        ),
        (
            json!({"jobTemplate": {"rayClusterSpec": {"enableInTreeAutoscaling": true}}}),
            "spec.jobTemplate.rayClusterSpec.enableInTreeAutoscaling: is not",
        ),
    ] {
        let message = wrong(spec);
        assert!(message.starts_with(expected), "{expected}: {message}");
    }
    let mut stage = Stage::new(json!({}));
    stage.cron.metadata.name = Some("c".repeat(37));
    stage.settle();
    let message = stage.heard("InvalidRayCronJobSpec").unwrap();
    assert!(
        message.contains("RayCronJob name should be no more than 36 characters"),
        "{message}"
    );
    stage.cron.metadata.name = Some("c".repeat(36));
    stage.wait(60);
    assert_eq!(stage.jobs[0].name().len(), 45);
}

#[test]
fn fields_that_are_not_supported_are_named() {
    let rule = json!({"policy": "DeleteCluster", "condition": {"jobStatus": "FAILED", "ttlSeconds": 9}});
    let strategy = json!({"deletionRules": [rule]});
    let mut stage = Stage::new(json!({"jitterSeconds": 5, "jobTemplate": {"deletionStrategy": strategy}}));
    stage.wait(60);
    assert_eq!(
        stage.heard("UnsupportedFields"),
        Some("not supported, and ignored: spec.jitterSeconds, spec.jobTemplate.deletionStrategy")
    );
    assert_eq!(stage.status().conditions[0].type_, conditions::UNSUPPORTED_FIELDS);
    assert_eq!(stage.minutes(), [1]);
}

#[test]
fn it_belongs_to_one_controller() {
    let mut stage = Stage::new(json!({"managedBy": "example.com/other"}));
    stage.wait(60);
    assert!(
        stage.cron.status.is_none()
            && stage
                .heard("ManagedByAnother")
                .unwrap()
                .contains("example.com/other")
    );

    let mut stage = Stage::new(json!({}));
    stage.kuberay = true;
    stage.wait(60);
    assert!(stage.cron.status.is_none() && stage.heard("ManagedByAnother").unwrap().contains("KubeRay"));

    let mut stage = Stage::new(json!({"managedBy": "lockstep.dev/ray-controller"}));
    stage.kuberay = true;
    stage.wait(60);
    assert_eq!(stage.minutes(), [1]);
    // Its jobs are claimed with it.
    assert!(stage.jobs[0].is_claimed());
}
