use serde_json::{Value, json};

use super::*;

fn kept<K: Belongs>(object: &Value) -> Belonging<K> {
    Belonging::of(&serde_json::from_value(object.clone()).expect("an object"))
}

#[test]
fn of_a_submitter_is_kept_what_tells_how_it_stands() {
    let labels = json!({keys::ORIGINATED_FROM_NAME: "train", keys::ORIGINATED_FROM_CRD: "RayJob"});
    let status = json!({"ready": 1, "active": 1, "terminating": 2,
        "conditions": [{"type": "Failed", "status": "True", "reason": "PodFailurePolicy"}]});
    let metadata = json!({"name": "train", "namespace": "a", "labels": labels, "annotations": {keys::JOB_ID: "1"},
        "finalizers": ["foregroundDeletion"], "deletionTimestamp": "2026-01-01T00:00:00Z",
        "ownerReferences": [{"apiVersion": "ray.io/v1", "kind": "RayJob", "name": "train", "uid": "u", "controller": true}]});
    let pods = json!({"metadata": {}, "spec": {"containers": [{"name": "c", "env": [{"name": "A", "value": "x".repeat(9_999)}]}]}});
    let job = json!({"metadata": metadata, "spec": {"suspend": true, "template": pods}, "status": status});
    let found: Belonging<Submitter> = kept(&job);
    assert!(found.text.len() < 1_500, "{} bytes", found.text.len());
    assert_eq!(found.owner(), Some(ObjectRef::new("train").within("a")));
    let read = serde_json::to_value(found.read()).expect("JSON");
    assert_eq!(read["metadata"], metadata);
    assert_eq!(read["spec"]["suspend"], true);
    assert_eq!(read["status"]["conditions"][0]["reason"], "PodFailurePolicy");
    assert_eq!(read["status"]["terminating"], 2);
}

#[test]
fn a_job_that_another_kind_has_made_belongs_to_no_rayjob() {
    let labels = json!({keys::ORIGINATED_FROM_NAME: "train", keys::ORIGINATED_FROM_CRD: "RayService"});
    let found: Belonging<Submitter> =
        kept(&json!({"metadata": {"name": "train", "namespace": "a", "labels": labels}}));
    assert_eq!(found.owner(), None);
}

#[test]
fn of_a_service_is_kept_what_it_is_compared_by() {
    let metadata = json!({"name": "c-head-svc", "namespace": "a", "labels": {keys::CLUSTER: "c"}, "annotations": {"a": "b"}});
    let spec = json!({"type": "NodePort", "clusterIP": "10.0.0.1", "selector": {"a": "b"}, "sessionAffinity": "None",
        "ports": [{"name": "dashboard", "port": 8265, "protocol": "TCP", "targetPort": 8265}]});
    let service = json!({"metadata": metadata, "spec": spec, "status": {"loadBalancer": {}}});
    let found: Belonging<HeadService> = kept(&service);
    assert_eq!(found.owner(), Some(ObjectRef::new("c").within("a")));
    let read = serde_json::to_value(found.read()).expect("JSON");
    assert_eq!(read["metadata"], metadata);
    let ports = json!([{"name": "dashboard", "port": 8265}]);
    assert_eq!(
        read["spec"],
        json!({"type": "NodePort", "clusterIP": "10.0.0.1", "ports": ports})
    );
    // Keeping it a second time changes nothing.
    let again: Belonging<HeadService> = kept(&read);
    assert_eq!(again.text, found.text);
}
