use serde_json::{Value, json};

use super::*;

fn read<K: Slim>(object: &Value) -> K {
    serde_json::from_value::<Lean<K>>(object.clone()).unwrap().0
}

fn metadata() -> Value {
    json!({
        "name": "o",
        "namespace": "ns",
        "uid": "u",
        "resourceVersion": "7",
        "labels": {"app": "a", labels::JOBSET_NAME: "js", labels::RESTART_ATTEMPT: "1"},
        "annotations": {"note": "n", LAST_APPLIED: "{}"},
        "managedFields": [{"manager": "m", "fieldsV1": {"f:spec": {}}}],
        "ownerReferences": [{"apiVersion": "v1", "kind": "K", "name": "js", "uid": "owner", "controller": true}],
    })
}

fn keys(map: Option<&BTreeMap<String, String>>) -> Vec<&str> {
    map.into_iter().flatten().map(|(key, _)| key.as_str()).collect()
}

#[test]
fn of_a_job_what_is_decided_on_is_read() {
    let job: Job = read(&json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": metadata(),
        "spec": {
            "parallelism": 2,
            "completions": 3,
            "completionMode": "Indexed",
            "suspend": true,
            "backoffLimit": 6,
            "backoffLimitPerIndex": 5,
            "managedBy": "m",
            "podFailurePolicy": {"rules": [{"action": "FailJob"}]},
            "template": {
                "metadata": {"labels": {"l": "1"}, "annotations": {"a": "1", annotations::IN_PLACE: "plain"}},
                "spec": {
                    "containers": [{"name": "worker", "env": [{"name": "A", "value": "b"}]}],
                    "tolerations": [{"key": "t"}],
                    "schedulingGates": [{"name": "g"}],
                },
            },
        },
        "status": {
            "ready": 1,
            "completedIndexes": "0-1",
            "conditions": [{"type": "Complete", "status": "True"}],
            "uncountedTerminatedPods": {"succeeded": ["x"]},
        },
    }));
    let meta = &job.metadata;
    assert_eq!(meta.resource_version.as_deref(), Some("7"));
    assert_eq!(meta.owner_references.as_ref().unwrap()[0].uid, "owner");
    assert_eq!(
        keys(meta.labels.as_ref()),
        [labels::JOBSET_NAME, labels::RESTART_ATTEMPT]
    );
    assert_eq!((&meta.annotations, &meta.managed_fields), (&None, &None));
    let spec = job.spec.unwrap();
    assert_eq!(
        (spec.parallelism, spec.completions, spec.suspend),
        (Some(2), Some(3), Some(true))
    );
    assert_eq!(
        (
            spec.backoff_limit,
            spec.backoff_limit_per_index,
            spec.managed_by.as_deref()
        ),
        (Some(6), Some(5), Some("m"))
    );
    assert_eq!(spec.completion_mode.as_deref(), Some("Indexed"));
    assert_eq!(spec.pod_failure_policy.unwrap().rules[0].action, "FailJob");
    let template = spec.template.metadata.unwrap();
    assert_eq!(
        (keys(template.annotations.as_ref()), template.labels),
        (vec![annotations::IN_PLACE], None)
    );
    let pod = spec.template.spec.unwrap();
    assert_eq!(pod.tolerations.unwrap()[0].key.as_deref(), Some("t"));
    assert_eq!(pod.scheduling_gates.unwrap()[0].name, "g");
    assert_eq!(pod.containers, Vec::new());
    let status = job.status.unwrap();
    assert_eq!(
        (status.ready, status.completed_indexes.as_deref()),
        (Some(1), Some("0-1"))
    );
    assert_eq!(status.conditions.unwrap()[0].type_, "Complete");
    assert_eq!(status.uncounted_terminated_pods, None);
}

#[test]
fn of_a_pod_its_metadata_its_place_and_its_status_are_read() {
    let pod: Pod = read(&json!({
        "metadata": metadata(),
        "spec": {"nodeName": "n", "nodeSelector": {"zone": "z"}, "containers": [{"name": "c"}]},
        "status": {"phase": "Running", "containerStatuses": [
            {"name": "c", "image": "i", "imageID": "", "ready": true, "restartCount": 3},
        ]},
    }));
    assert_eq!(keys(pod.metadata.annotations.as_ref()), ["note"]);
    assert!(keys(pod.metadata.labels.as_ref()).contains(&"app"));
    let spec = pod.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("n"));
    assert_eq!(keys(spec.node_selector.as_ref()), ["zone"]);
    let status = pod.status.unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert_eq!(status.container_statuses.unwrap()[0].restart_count, 3);
}

#[test]
fn of_a_pod_what_keeps_it_from_having_agents_is_read() {
    let pod: Pod = read(&json!({
        "metadata": metadata(),
        "spec": {"shareProcessNamespace": true, "hostPID": true, "runtimeClassName": "kata"},
    }));
    let spec = pod.spec.unwrap();
    assert_eq!(
        (
            spec.share_process_namespace,
            spec.host_pid,
            spec.runtime_class_name.as_deref()
        ),
        (Some(true), Some(true), Some("kata"))
    );
}

#[test]
fn of_services_and_claims_the_metadata_is_read() {
    let object = json!({"metadata": metadata(), "spec": {"clusterIP": "None"}, "status": {}});
    let service: Service = read(&object);
    assert_eq!(service.metadata.name.as_deref(), Some("o"));
    assert_eq!((service.spec, service.status), (None, None));
    let claim: PersistentVolumeClaim = read(&object);
    assert_eq!(claim.metadata.uid.as_deref(), Some("u"));
    assert_eq!(claim.spec, None);
}

#[test]
fn what_is_null_or_missing_is_missing() {
    let job: Job = read(
        &json!({"metadata": {"name": "j", "labels": null}, "spec": {"template": {"spec": null}}, "status": null}),
    );
    assert_eq!((job.metadata.labels, job.status), (None, None));
    let pod: Pod = read(&json!({"metadata": {"annotations": null}}));
    assert_eq!((pod.metadata.annotations, pod.spec), (None, None));
}

#[test]
fn an_object_is_written_whole() {
    let mut job = Job::default();
    job.spec.get_or_insert_default().backoff_limit = Some(3);
    assert_eq!(json!(Lean(job))["spec"]["backoffLimit"], json!(3));
}
