use proptest::prelude::*;
use serde_json::{Value, json};

use super::fetch::{ClaimSeen, PodSeen, SelectorSeen};
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
fn the_fields_of_a_job_that_decisions_need_are_read() {
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
fn the_fields_of_a_pod_that_prevent_agents_are_read() {
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
fn null_and_missing_fields_are_unset() {
    let job: Job = read(
        &json!({"metadata": {"name": "j", "labels": null}, "spec": {"template": {"spec": null}}, "status": null}),
    );
    assert_eq!((job.metadata.labels, job.status), (None, None));
    let pod: Pod = read(&json!({"metadata": {"annotations": null}}));
    assert_eq!((pod.metadata.annotations, pod.spec), (None, None));
}

#[test]
fn an_object_is_serialized_with_all_fields() {
    let mut job = Job::default();
    job.spec.get_or_insert_default().backoff_limit = Some(3);
    assert_eq!(json!(Lean(job))["spec"]["backoffLimit"], json!(3));
}

fn owner(name: &str, uid: &str, controls: bool) -> Value {
    json!({"apiVersion": "v1", "kind": "K", "name": name, "uid": uid, "controller": controls})
}

/// The UIDs of the owners as read from a Service and from a pod.
fn owners_of(owners: &Value) -> [Vec<String>; 2] {
    let object = json!({"metadata": {"ownerReferences": owners}});
    let (service, pod): (Service, Pod) = (read(&object), read(&object));
    [service.metadata, pod.metadata].map(|meta| {
        let owners = meta.owner_references.into_iter().flatten();
        owners.map(|owner| owner.uid).collect()
    })
}

#[test]
fn owners_of_more_text_than_names_have_are_not_read() {
    let long = "x".repeat(1_024);
    let owners = json!([
        owner("a", &long, true),
        owner(&long, "b", false),
        owner("c", "c", true)
    ]);
    assert_eq!(owners_of(&owners), [["c"], ["c"]]);
    let just_fits = json!([owner("a", &long[..1_024 - "v1Ka".len()], true)]);
    assert!(owners_of(&just_fits).iter().all(|owners| owners.len() == 1));
    assert_eq!(owners_of(&Value::Null), [[""; 0]; 2]);
}

#[test]
fn the_controller_is_kept_wherever_it_is_among_many_owners() {
    let mut owners = vec![owner("o", "other", false); 100];
    owners[99] = owner("o", "controls", true);
    let [service, pod] = owners_of(&json!(owners));
    assert_eq!(service, ["controls"]);
    assert_eq!((pod.len(), pod.last().unwrap().as_str()), (16, "controls"));
    // Of a Service no other owner is of interest.
    owners.truncate(99);
    let [service, pod] = owners_of(&json!(owners));
    assert_eq!((service.len(), pod.len()), (0, 16));
}

#[test]
fn services_and_claims_count_with_all_their_texts() {
    let text = |length: usize| "x".repeat(length);
    let small: Service = read(&json!({"metadata": {"name": "a", "namespace": "b"}}));
    let metadata = json!({
        "name": text(253), "namespace": text(63), "uid": text(36),
        "labels": {labels::JOBSET_NAME: text(63)},
        "ownerReferences": [owner(&text(253), &text(36), true)],
    });
    let large: PersistentVolumeClaim = read(&json!({"metadata": metadata}));
    assert!(small.bytes() < 2_000, "{}", small.bytes());
    assert!(
        large.bytes() > small.bytes() + 600,
        "{} {}",
        large.bytes(),
        small.bytes()
    );
}

fn fetch<Seen, K>(object: &Value) -> serde_json::Result<K>
where
    Seen: serde::de::DeserializeOwned + Into<K>,
{
    serde_json::from_str::<Seen>(&object.to_string()).map(Into::into)
}

#[test]
fn of_a_claim_that_is_asked_for_its_spec_is_read() {
    let claim = |names: usize| {
        let names = vec!["ReadWriteOnce"; names];
        fetch::<ClaimSeen, PersistentVolumeClaim>(
            &json!({"metadata": metadata(), "spec": {"accessModes": names, "volumeName": "v"}}),
        )
    };
    let read = claim(1).unwrap();
    assert_eq!(read.metadata, ObjectMeta::default());
    assert_eq!(read.spec.unwrap().volume_name.as_deref(), Some("v"));
    let error = claim(1_000).unwrap_err().to_string();
    assert!(error.contains("no more than 8192 to be compared"), "{error}");
    let without = fetch::<ClaimSeen, PersistentVolumeClaim>(&json!({"metadata": metadata(), "spec": null}));
    assert_eq!(without.unwrap().spec, None);
}

#[test]
fn of_a_service_that_is_asked_for_its_owners_and_its_selector_are_read() {
    let service = |selector: &Value| -> Service {
        let spec = json!({"type": "ClusterIP", "clusterIP": "None", "selector": selector, "ports": []});
        fetch::<SelectorSeen, _>(&json!({"metadata": metadata(), "spec": spec})).unwrap()
    };
    let few = service(&json!({"app": "a"}));
    assert_eq!(few.metadata.labels, None);
    assert_eq!(few.metadata.owner_references.unwrap()[0].uid, "owner");
    let spec = few.spec.unwrap();
    assert_eq!(
        (
            spec.type_.as_deref(),
            spec.cluster_ip.as_deref(),
            keys(spec.selector.as_ref())
        ),
        (Some("ClusterIP"), Some("None"), vec!["app"])
    );
    let many: BTreeMap<String, String> = (0..2_000).map(|n| (n.to_string(), "a".to_owned())).collect();
    let many = service(&json!(many)).spec.unwrap();
    assert_eq!(
        (many.selector.unwrap().len(), many.cluster_ip.as_deref()),
        (1_024, Some("None"))
    );
    assert_eq!(service(&Value::Null).spec.unwrap().selector, None);
}

#[test]
fn a_fetched_pod_has_its_account_and_readiness() {
    let pod: Pod = fetch::<PodSeen, _>(&json!({
        "metadata": metadata(),
        "spec": {"serviceAccountName": "sa", "nodeName": "n", "containers": [{"name": "c"}]},
        "status": {
            "podIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "False", "reason": "ContainersNotReady"}],
            "containerStatuses": [{
                "name": "c", "image": "i", "imageID": "", "ready": false, "restartCount": 3,
                "state": {"waiting": {"reason": "ImagePullBackOff"}},
            }],
        },
    }))
    .unwrap();
    assert_eq!(
        (pod.metadata.uid.as_deref(), pod.metadata.labels),
        (Some("u"), None)
    );
    let spec = pod.spec.unwrap();
    assert_eq!(
        (spec.service_account_name.as_deref(), spec.node_name),
        (Some("sa"), None)
    );
    let status = pod.status.unwrap();
    assert_eq!(status.pod_ip.as_deref(), Some("10.0.0.1"));
    assert_eq!(
        status.conditions.unwrap()[0].reason.as_deref(),
        Some("ContainersNotReady")
    );
    let container = status.container_statuses.unwrap().remove(0);
    let waiting = container.state.unwrap().waiting.unwrap();
    assert_eq!(
        (container.name.as_str(), waiting.reason.as_deref()),
        ("c", Some("ImagePullBackOff"))
    );
}

/// An object of each kind that the caches read, or an error.
fn read_all(bytes: &[u8]) -> [Option<ObjectMeta>; 4] {
    fn meta<K: Slim>(bytes: &[u8]) -> Option<ObjectMeta> {
        let read = serde_json::from_slice::<Lean<K>>(bytes).ok();
        read.map(|Lean(object)| object.meta().clone())
    }
    [
        meta::<Job>(bytes),
        meta::<Pod>(bytes),
        meta::<Service>(bytes),
        meta::<PersistentVolumeClaim>(bytes),
    ]
}

proptest! {
    #[test]
    fn any_bytes_are_an_error_or_an_object_of_few_owners(
        garbage: Vec<u8>,
        owners in prop::collection::vec((".{0,40}", any::<bool>()), 0..40),
        damage in prop::option::of((any::<prop::sample::Index>(), any::<u8>())),
    ) {
        let owners: Vec<_> = owners.iter().map(|(uid, controls)| owner("o", uid, *controls)).collect();
        let object = json!({"metadata": {"name": "o", "ownerReferences": owners}, "spec": {}, "status": {}});
        let mut text = object.to_string().into_bytes();
        if let Some((at, byte)) = damage {
            let at = at.index(text.len());
            text[at] = byte;
        }
        for meta in read_all(&text).into_iter().chain(read_all(&garbage)).flatten() {
            prop_assert!(meta.owner_references.unwrap_or_default().len() <= 16);
        }
    }
}
