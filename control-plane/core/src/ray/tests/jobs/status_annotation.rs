//! RayJobs with KubeRay's definition, which drops our fields of the status.

use proptest::prelude::*;

use super::*;

/// The part of a status that KubeRay's definition keeps.
pub(super) fn pruned(status: &RayJobStatus) -> RayJobStatus {
    let mut status = serde_json::to_value(status).unwrap();
    for field in [
        "numRetries",
        "deadlineExceeded",
        "session",
        "previousSession",
        "unreachableSince",
        "retryingSince",
        "firstSubmissionTime",
        "submitterLostSince",
        "restartsBefore",
        "headFailuresBefore",
        "needsNewCluster",
        "conditions",
    ] {
        status.as_object_mut().unwrap().remove(field);
    }
    serde_json::from_value(status).unwrap()
}

/// A job with KubeRay's definition that Ray runs.
fn runs(spec: Value) -> Stage {
    let mut stage = Stage::new(spec);
    stage.is_kuberays = true;
    stage.runs("s0");
    stage
}

fn recalled(stage: &Stage) -> RayJobStatus {
    recall(&Arc::new(stage.job.clone())).job.status.clone().unwrap()
}

#[test]
fn a_job_is_submitted_and_tried_again_once_each() {
    let mut stage = runs(json!({"backoffLimit": 1}));
    assert!(stage.status().session.is_empty() && recalled(&stage).session == "s0");
    stage.says("FAILED");
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Retrying, 1));
    stage.session("s0").wait(60);
    assert_eq!(stage.submitted.len(), 1);
    stage.session("s1").says("FAILED");
    assert_eq!((stage.phase(), stage.status().failed), (Phase::Failed, 2));
    assert_eq!((stage.submitted.len(), stage.clusters.len()), (2, 1));
    assert_eq!(recalled(&stage).num_retries, 1);
}

#[test]
fn a_restarted_head_is_noticed() {
    let mut stage = runs(json!({}));
    stage.session("s1");
    assert_eq!(stage.status().reason, "HeadRestarted");
}

#[test]
fn a_decision_survives_a_crash_before_the_status_is_written() {
    let mut stage = runs(json!({"backoffLimit": 1}));
    let Ray::Reached { job: Some(info), .. } = &mut stage.ray else {
        panic!("out of reach");
    };
    info.status = "FAILED".to_owned();
    let before = stage.job.status.clone();
    stage.step();
    stage.job.status = before;
    assert_eq!((stage.phase(), stage.status().failed), (Phase::Running, 0));
    stage.settle();
    assert_eq!((stage.phase(), stage.status().failed), (Phase::Retrying, 1));
    assert_eq!(recalled(&stage).num_retries, 1);
    // The decision is also shown if nothing else is to be done.
    stage.session("s1").says("SUCCEEDED");
    let shown = stage.job.status.clone();
    stage.job.status.as_mut().unwrap().job_deployment_status = Some(Phase::Running);
    stage.settle();
    assert_eq!(stage.job.status, shown);
    assert_eq!(stage.step(), JobPlan::default());
}

#[test]
fn a_status_and_an_annotation_that_are_lost_fail_no_job_that_runs() {
    // As if a manifest had replaced the object.
    let mut stage = runs(json!({"backoffLimit": 1}));
    stage.says("FAILED").session("s1").says("RUNNING");
    stage.job.metadata.annotations = None;
    stage.says("RUNNING");
    let seen = recalled(&stage);
    assert_eq!((stage.phase(), stage.status().failed), (Phase::Running, 1));
    assert_eq!((seen.num_retries, seen.session.as_str()), (1, "s1"));
    // As if restored from a backup.
    let mut stage = runs(json!({}));
    stage.job.status = None;
    stage.says("RUNNING").wait(400);
    assert_eq!((stage.phase(), stage.status().failed), (Phase::Running, 0));
    let mut stage = running(json!({}));
    stage.job.status = None;
    stage.settle().wait(400);
    stage.says("SUCCEEDED");
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Complete, 1));
}

#[test]
fn what_is_not_this_jobs_is_not_believed() {
    let mut former = runs(json!({}));
    former.says("SUCCEEDED");
    let annotations = former.job.metadata.annotations.clone();
    // A manifest that was made from the object, with another UID.
    let mut stage = Stage::new(json!({}));
    stage.is_kuberays = true;
    stage.job.metadata.annotations.clone_from(&annotations);
    stage.job.metadata.uid = Some("uid-of-another".to_owned());
    stage.settle();
    assert_eq!((stage.phase(), stage.clusters.len()), (Phase::Initializing, 1));
    let copied = stage.cluster.as_ref().unwrap().metadata.annotations.clone();
    assert!(!copied.unwrap_or_default().contains_key(keys::JOB_STATUS));
    // If the definition keeps the whole status, the status counts.
    let mut stage = running(json!({}));
    stage.job.metadata.annotations = annotations;
    stage.says("RUNNING");
    assert_eq!(stage.phase(), Phase::Running);
    // No text causes an error.
    for text in [
        "",
        "null",
        "{",
        "{\"uid\": \"uid-rj\", \"status\": {\"failed\": \"many\"}}",
    ] {
        let mut stage = runs(json!({}));
        let annotations = stage.job.metadata.annotations.as_mut().unwrap();
        annotations.insert(keys::JOB_STATUS.to_owned(), text.to_owned());
        stage.says("SUCCEEDED");
        assert_eq!(stage.phase(), Phase::Complete);
    }
}

#[test]
fn a_job_that_kuberay_has_begun_since_is_not_begun_again() {
    let mut stage = Stage::new(json!({"suspend": true, "shutdownAfterJobFinishes": true}));
    stage.is_kuberays = true;
    stage.settle();
    assert_eq!(stage.phase(), Phase::Suspended);
    // The job is resumed, and KubeRay has managed it for a while.
    let theirs = RayJobStatus {
        job_deployment_status: Some(Phase::Running),
        ray_cluster_name: "rj-kuberays".to_owned(),
        ..RayJobStatus::default()
    };
    stage.job.spec.suspend = Some(false);
    stage.job.status = Some(theirs.clone());
    stage.settle();
    assert!(stage.clusters.is_empty() && stage.submitted.is_empty());
    assert_eq!(stage.job.status, Some(theirs));
}

#[test]
fn the_annotation_holds_no_address_and_is_bounded() {
    let mut stage = runs(json!({}));
    let Ray::Reached { job: Some(info), .. } = &mut stage.ray else {
        panic!("out of reach");
    };
    info.message = "\u{1f4a5}".repeat(100_000);
    stage.settle();
    let text = stage.job.annotation(keys::JOB_STATUS).unwrap();
    assert!(
        text.len() < 10_000 && !text.contains("dashboardURL"),
        "{}",
        text.len()
    );
    assert_eq!(stage.status().message.len(), 400_000);
    // It is not taken for another message.
    assert_eq!(stage.plan().status, None);
}

#[test]
fn the_annotation_goes_once_the_definition_keeps_the_status() {
    let mut stage = runs(json!({"backoffLimit": 1}));
    stage.says("FAILED");
    assert!(stage.job.annotation(keys::JOB_STATUS).is_some());
    // Our definition replaces KubeRay's. The fields that were dropped are only in the annotation.
    stage.is_kuberays = false;
    assert!(!stage.plan().forget);
    stage.session("s1").says("RUNNING");
    assert_eq!(stage.job.annotation(keys::JOB_STATUS), None);
    assert_eq!(
        (stage.status().num_retries, stage.status().session.as_str()),
        (1, "s1")
    );
    assert_eq!((stage.submitted.len(), stage.clusters.len()), (2, 1));
    // And the other way round.
    stage.is_kuberays = true;
    stage.job.status = Some(pruned(stage.status()));
    stage.says("FAILED");
    assert_eq!((stage.phase(), stage.status().failed), (Phase::Failed, 2));
    // If the status was dropped after the annotation had gone, the job does not fail.
    let mut stage = runs(json!({}));
    stage.job.metadata.annotations = None;
    stage.says("RUNNING").says("SUCCEEDED");
    assert_eq!((stage.phase(), stage.submitted.len()), (Phase::Complete, 1));
}

#[test]
fn a_definition_that_keeps_the_status_has_no_annotation() {
    let mut stage = running(json!({"backoffLimit": 1}));
    stage.says("FAILED").session("s1").says("SUCCEEDED");
    assert_eq!(stage.phase(), Phase::Complete);
    assert!(stage.job.metadata.annotations.is_none());
}

/// Values of the wrong type, or out of bounds.
fn odd() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        "\\PC{0,12}".prop_map(Value::from),
        prop::sample::select(vec![
            Value::Null,
            json!(true),
            json!(i32::MAX),
            json!(i32::MIN),
            json!(1e300),
            json!("9999-12-31T23:59:59Z"),
            json!("-9999-01-01T00:00:00Z"),
            json!("x".repeat(10_000)),
            json!([]),
            json!({}),
            json!("Running"),
            json!("Retrying"),
        ]),
    ]
}

proptest! {
    /// A user who may write annotations may write this one, and knows the UID.
    #[test]
    fn any_annotation_leads_to_a_decision(
        changes in prop::collection::vec((any::<prop::sample::Index>(), odd()), 1..4),
        garbage in "\\PC{0,60}",
        damage in (any::<prop::sample::Index>(), any::<char>()),
    ) {
        let mut stage = runs(json!({"backoffLimit": 3, "activeDeadlineSeconds": 60}));
        let written = stage.job.annotation(keys::JOB_STATUS).unwrap().to_owned();
        let mut changed: Value = serde_json::from_str(&written).unwrap();
        let fields: Vec<String> = changed["status"].as_object().unwrap().keys().cloned().collect();
        for (field, value) in changes {
            changed["status"][&fields[field.index(fields.len())]] = value;
        }
        let damaged: String = written
            .chars()
            .enumerate()
            .map(|(at, char)| if at == damage.0.index(written.chars().count()) { damage.1 } else { char })
            .collect();
        for text in [changed.to_string(), damaged, garbage] {
            let annotations = stage.job.metadata.annotations.get_or_insert_default();
            annotations.insert(keys::JOB_STATUS.to_owned(), text);
            for says in ["RUNNING", "FAILED"] {
                stage.ray = Ray::Reached {
                    session: "s0".to_owned(),
                    job: Some(RayInfo { status: says.to_owned(), ..RayInfo::default() }),
                };
                let plan = stage.plan();
                // The next write of it is bounded.
                let status = plan.status.map(|status| status.message.len());
                prop_assert!(status.is_none_or(|length| length < 64 << 10));
            }
        }
    }
}
