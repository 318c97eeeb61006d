use super::*;

#[test]
fn the_definition_records_the_version_of_the_control_plane() {
    let version = JOBSET_DEFINITION.version().unwrap();
    assert!(
        version
            .to_string()
            .starts_with(concat!(env!("CARGO_PKG_VERSION"), "+")),
        "{version}"
    );
    let definition = JOBSET_DEFINITION.at(&version).unwrap();
    assert_eq!(
        definition["metadata"]["annotations"][CRD_VERSION],
        json!(version.to_string())
    );
    assert_eq!(definition["metadata"]["name"], JOBSET_DEFINITION.name);
    assert_eq!(definition["kind"], "CustomResourceDefinition");
}

#[test]
fn a_forbidden_write_is_not_retried() {
    let failed = |code| {
        let status = kube::core::Status::failure("no", "no").with_code(code);
        CrdError::Api(kube::Error::Api(status.boxed())).is_transient()
    };
    assert_eq!([403, 404, 422].map(failed), [false; 3]);
    assert_eq!([409, 429, 500, 503].map(failed), [true; 4]);
}

#[test]
fn a_definition_that_knows_more_is_recognised() {
    let ours = JOBSET_DEFINITION
        .at(&JOBSET_DEFINITION.version().unwrap())
        .unwrap();
    assert_eq!(only_in(&ours, &ours), None);
    let mut newer = ours.clone();
    newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["replicatedJobs"]
        ["items"]["properties"]["priority"] = json!({"type": "integer"});
    assert_eq!(
        only_in(&newer, &ours).as_deref(),
        Some("v1alpha2.spec.replicatedJobs.priority")
    );
    assert_eq!(only_in(&ours, &newer), None);
    let mut next = ours.clone();
    next["spec"]["versions"][0]["name"] = json!("v1beta1");
    assert_eq!(only_in(&next, &ours).as_deref(), Some("v1beta1"));
    assert_eq!(only_in(&json!({}), &ours), None);
}

/// The writer does not matter: another replica of the control plane may have changed it a moment
/// ago.
#[test]
fn a_definition_that_has_just_changed_takes_a_while_to_hold() {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ManagedFieldsEntry, Time};

    let at = |second| Timestamp::from_second(second).unwrap();
    let entry = |second, subresource: Option<&str>| ManagedFieldsEntry {
        time: Some(Time(at(second))),
        subresource: subresource.map(str::to_owned),
        ..ManagedFieldsEntry::default()
    };
    let mut meta = ObjectMeta {
        generation: Some(2),
        managed_fields: Some(vec![
            entry(100, None),
            entry(90, None),
            entry(110, Some("status")),
        ]),
        ..ObjectMeta::default()
    };
    let left = |meta: &ObjectMeta, second| propagation(meta, at(second)).as_secs();
    assert_eq!([100, 102, 105, 200].map(|now| left(&meta, now)), [5, 3, 0, 0]);
    // This machine's clock shows a time before the change.
    assert_eq!(left(&meta, 50), 5);
    meta.generation = Some(1);
    assert_eq!(left(&meta, 100), 0, "there was none before it");
}

#[test]
fn the_definitions_of_ray_can_be_read() {
    for definition in RAY_DEFINITIONS {
        let read = definition.at(&definition.version().unwrap()).unwrap();
        assert_eq!(read["metadata"]["name"], definition.name);
        assert_eq!(read["spec"]["versions"][0]["name"], lockstep_api::ray::VERSION);
    }
}

/// KubeRay's own definitions have more fields, and are not replaced.
#[test]
fn a_definition_of_kuberay_is_left_unchanged() {
    let [ours, ..] = RAY_DEFINITIONS.map(|definition| definition.at(&definition.version().unwrap()).unwrap());
    let mut theirs = ours.clone();
    theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["autoscalerOptions"] =
        json!({"type": "object"});
    assert_eq!(
        only_in(&theirs, &ours).as_deref(),
        Some("v1.spec.autoscalerOptions")
    );
}
