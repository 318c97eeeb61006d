use lockstep_api::ReplicatedJob;
use serde_json::json;

use super::*;

fn read(spec: &serde_json::Value) -> PackedJobSet {
    serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {
            "name": "js",
            "namespace": "ns",
            "resourceVersion": "7",
            "annotations": {"note": "n", LAST_APPLIED: "{}"},
            "managedFields": [{"manager": "m"}],
        },
        "spec": spec,
        "status": {"restarts": 2},
    }))
    .unwrap()
}

#[test]
fn a_jobset_loses_nothing_but_bookkeeping() {
    let template =
        json!({"spec": {"parallelism": 2, "template": {"spec": {"containers": [{"name": "é\"\\"}]}}}});
    let spec =
        json!({"suspend": true, "replicatedJobs": [{"name": "a", "replicas": 4, "template": template}]});
    let packed = read(&spec);
    assert_eq!(packed.key(), ObjectRef::new("js").within("ns"));
    let jobset = packed.unpack().unwrap();
    assert_eq!(jobset.metadata.resource_version.as_deref(), Some("7"));
    assert_eq!(
        (
            jobset.metadata.managed_fields.clone(),
            jobset.metadata.annotations.clone()
        ),
        (None, Some([("note".to_owned(), "n".to_owned())].into()))
    );
    assert_eq!(jobset.status.as_ref().unwrap().restarts, 2);
    let expected: ReplicatedJob =
        serde_json::from_value(json!({"name": "a", "replicas": 4, "template": template})).unwrap();
    assert_eq!(jobset.spec.replicated_jobs, [expected]);
    assert_eq!(jobset.spec.suspend, Some(true));
}

#[test]
fn one_of_too_many_objects_is_kept_as_text_and_not_read() {
    let with = |volumes: usize| {
        let volumes = vec![json!({"name": "a"}); volumes];
        let spec = json!({"template": {"spec": {"containers": [], "volumes": volumes}}});
        read(&json!({"replicatedJobs": [{"name": "a", "template": {"spec": spec}}]}))
    };
    let most = with(Extent::MOST.objects - 20);
    assert!(most.unpack().is_ok());
    assert!(most.size() > 1 << 20);
    let error = with(Extent::MOST.objects).unpack().unwrap_err().to_string();
    assert!(error.starts_with("spec: has 819"), "{error}");
}

#[test]
fn the_limits_of_spec_and_status_are_separate() {
    let with = |statuses: usize| {
        let mut jobset = read(&json!({"replicatedJobs": []})).unpack().unwrap();
        let status = jobset.status.as_mut().unwrap();
        status
            .replicated_jobs_status
            .resize_with(statuses, Default::default);
        PackedJobSet::of(&jobset).unwrap().unpack()
    };
    assert!(with(1000).is_ok());
    let error = with(Extent::MOST.objects).unwrap_err().to_string();
    assert!(error.starts_with("status: has 819"), "{error}");
}

#[test]
fn own_writes_unpack_like_objects_from_the_watch() {
    let seen = read(&json!({"replicatedJobs": [{"name": "a", "template": {}}]}))
        .unpack()
        .unwrap();
    let mut written = seen.clone();
    written.metadata.managed_fields = Some(Vec::new());
    assert_eq!(PackedJobSet::of(&written).unwrap().unpack().unwrap(), seen);
}

#[test]
fn jobsets_that_restart_in_place_are_found_without_parsing() {
    let plain = read(&json!({"failurePolicy": {"restartStrategy": "Recreate"}}));
    assert!(!plain.may_restart_in_place());
    let by_strategy = read(&json!({"failurePolicy": {"restartStrategy": "InPlaceRestart"}}));
    assert!(by_strategy.may_restart_in_place());
    let mut by_annotation = plain.clone();
    by_annotation.metadata.annotations = Some([(IN_PLACE_TIMEOUT.to_owned(), String::new())].into());
    assert!(by_annotation.may_restart_in_place());
    let mut jobset = plain.unpack().unwrap();
    jobset.status.as_mut().unwrap().in_place_restart =
        serde_json::from_value(json!({"kind": "Plain"})).unwrap();
    assert!(jobset.in_place(), "its Jobs were made for it");
    assert!(PackedJobSet::of(&jobset).unwrap().may_restart_in_place());
}

#[test]
fn a_jobset_without_spec_can_be_read() {
    let packed: PackedJobSet = serde_json::from_value(json!({"metadata": {"name": "js"}})).unwrap();
    let jobset = packed.unpack().unwrap();
    assert_eq!((jobset.spec, jobset.status), (JobSetSpec::default(), None));
}

#[test]
fn an_error_names_the_field() {
    let wrong = read(&json!({"replicatedJobs": [{"name": 7}]}))
        .unpack()
        .unwrap_err();
    assert_eq!(
        wrong.to_string(),
        "spec.replicatedJobs[0].name: Invalid value: 7: must be of type string"
    );
}
