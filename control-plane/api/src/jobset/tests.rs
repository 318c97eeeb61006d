use serde_json::{Value, json};

use super::*;
use crate::{JobSetStatus, labels};

fn jobset(mut object: Value) -> JobSet {
    object["metadata"]["name"] = json!("train");
    serde_json::from_value(object).unwrap()
}

#[test]
fn undefaulted_objects_mean_the_defaults() {
    for object in [
        json!({}),
        json!({ "spec": {} }),
        json!({ "spec": { "network": {}, "failurePolicy": {} } }),
    ] {
        let jobset = jobset(object);
        assert_eq!(jobset.subdomain(), "train");
        assert!(jobset.dns_hostnames());
        assert!(jobset.publish_not_ready_addresses());
        assert!(!jobset.is_suspended());
        assert!(jobset.is_managed_here());
        assert!(!jobset.is_finished());
        assert!(!jobset.is_deleting());
        assert_eq!(jobset.restart_attempt(), 0);
        assert_eq!(jobset.max_restarts(), 0);
        assert_eq!(jobset.restart_strategy(), RestartStrategy::Recreate);
        assert!(!jobset.in_place());
        assert!(!jobset.starts_in_order());
        assert_eq!(jobset.success_operator(), Operator::All);
        assert_eq!(jobset.coordinator_endpoint(), None);
    }
    let job = ReplicatedJob::default();
    assert_eq!((job.replicas(), job.group_name()), (1, "default"));
    assert_eq!(
        VolumeClaimPolicy::default().when_deleted(),
        RetentionPolicy::Delete
    );
}

#[test]
fn stated_values_are_taken() {
    let jobset = jobset(json!({ "spec": {
        "replicatedJobs": [{ "name": "workers", "replicas": 0, "groupName": "gpu", "template": {} }],
        "network": { "enableDNSHostnames": false, "subdomain": "sub", "publishNotReadyAddresses": false },
        "successPolicy": { "operator": "Any" },
        "failurePolicy": { "maxRestarts": 3, "restartStrategy": "BlockingRecreate" },
        "startupPolicy": { "startupPolicyOrder": "InOrder" },
        "suspend": true,
        "coordinator": { "replicatedJob": "workers", "podIndex": 2 },
        "volumeClaimPolicies": [{ "retentionPolicy": { "whenDeleted": "Retain" } }],
    }}));
    let workers = jobset.replicated_job("workers").unwrap();
    assert_eq!((workers.replicas(), workers.group_name()), (0, "gpu"));
    assert_eq!(jobset.replicated_job("others"), None);
    assert_eq!(jobset.job_name("workers", 1), "train-workers-1");
    assert_eq!(jobset.subdomain(), "sub");
    assert!(!jobset.dns_hostnames());
    assert!(!jobset.publish_not_ready_addresses());
    assert_eq!(jobset.success_operator(), Operator::Any);
    assert_eq!(jobset.max_restarts(), 3);
    assert_eq!(jobset.restart_strategy(), RestartStrategy::BlockingRecreate);
    assert!(jobset.starts_in_order());
    assert!(jobset.is_suspended());
    assert_eq!(
        jobset.coordinator_endpoint().as_deref(),
        Some("train-workers-0-2.sub")
    );
    assert_eq!(
        jobset.spec.volume_claim_policies[0].when_deleted(),
        RetentionPolicy::Retain
    );
}

#[test]
fn in_place_by_strategy_or_annotation() {
    let by_strategy = jobset(json!({ "spec": { "failurePolicy": { "restartStrategy": "InPlaceRestart" } } }));
    assert!(by_strategy.in_place());
    // An invalid value still requests it; the error is reported where the value is used.
    for value in ["60s", "soon", ""] {
        assert!(jobset(json!({ "metadata": { "annotations": { IN_PLACE_TIMEOUT: value } } })).in_place());
    }
    assert!(!jobset(json!({ "metadata": { "annotations": { labels::JOBSET_NAME: "x" } } })).in_place());
}

#[test]
fn jobsets_of_other_managers_are_not_managed_here() {
    for (manager, here) in [(CONTROLLER_NAME, true), ("acme.io/foo", false), ("", false)] {
        assert_eq!(
            jobset(json!({ "spec": { "managedBy": manager } })).is_managed_here(),
            here,
            "{manager:?}"
        );
    }
}

#[test]
fn finished_by_condition() {
    let finished = |type_: &str, status: &str| {
        let mut jobset = jobset(json!({}));
        jobset.status = Some(JobSetStatus {
            conditions: serde_json::from_value(json!([{
                "type": type_, "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z",
            }]))
            .unwrap(),
            ..JobSetStatus::default()
        });
        jobset.is_finished()
    };
    assert!(finished(COMPLETED, "True"));
    assert!(finished(FAILED, "True"));
    assert!(!finished(FAILED, "False"));
    assert!(!finished("Suspended", "True"));
}
