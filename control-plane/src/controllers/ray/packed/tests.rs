use lockstep_api::ray::{RayCluster, RayJob};
use serde_json::{Value, json};

use super::*;

fn job(spec: Value) -> Packed<RayJob> {
    serde_json::from_value(json!({
        "metadata": {"name": "j", "namespace": "ns", "managedFields": [{"manager": "m"}]},
        "spec": spec,
        "status": {"jobId": "j-abcde"},
    }))
    .unwrap()
}

#[test]
fn the_field_that_cannot_be_read_is_named_and_so_is_the_object() {
    let bad = job(json!({"backoffLimit": "two"}));
    assert_eq!(bad.meta().name.as_deref(), Some("j"));
    assert_eq!(bad.read().metadata.namespace.as_deref(), Some("ns"));
    assert_eq!(
        bad.unfit(),
        Some("spec.backoffLimit: Invalid value: \"two\": must be of type integer")
    );

    let good = job(json!({"backoffLimit": 2}));
    assert_eq!((good.meta().name.as_deref(), good.unfit()), (Some("j"), None));
    assert_eq!(good.read().spec.backoff_limit, Some(2));
    assert_eq!(good.read().status, good.without_spec().status);
    assert_eq!(good.without_spec().spec.backoff_limit, None);
    assert_eq!(good.read().metadata.managed_fields, None);
}

#[test]
fn the_status_and_the_manager_of_an_unreadable_object_are_known() {
    let of = |status: Value| -> Packed<RayJob> {
        let spec = json!({"managedBy": "lockstep.dev/ray-controller", "backoffLimit": "two"});
        serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": spec, "status": status})).unwrap()
    };
    let known = of(json!({"jobId": "j-abcde"})).read();
    assert!(known.is_claimed());
    assert_eq!(known.status.unwrap().job_id, "j-abcde");
    // Here its status is unreadable too.
    let known = of(json!({"jobId": 5})).read();
    assert_eq!(
        (known.metadata.name.as_deref(), &known.status),
        (Some("j"), &None)
    );
    assert!(known.is_claimed());
}

#[test]
fn a_resource_with_too_many_objects_is_known_and_not_read() {
    let with = |volumes: usize| -> Packed<RayCluster> {
        let template = json!({"spec": {"containers": [], "volumes": vec![json!({"name": "a"}); volumes]}});
        let spec =
            json!({"managedBy": "another", "headGroupSpec": {"rayStartParams": {}, "template": template}});
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": spec})).unwrap()
    };
    let (small, large, huge) = (with(10), with(1_000), with(3_000));
    let too_large = with(Extent::MOST.objects);
    assert_eq!((small.unfit(), small.size), (None, Size::Usual));
    assert_eq!((large.unfit(), large.size), (None, Size::Large));
    assert_eq!((huge.unfit(), huge.size), (None, Size::Huge));
    let error = too_large.unfit().unwrap();
    assert!(error.starts_with("spec: has 819"), "{error}");
    let turns = LargeTurns::default();
    let _turn = huge.turn(&turns).ok().unwrap();
    assert!(huge.turn(&turns).is_err());
    assert!(large.turn(&turns).is_ok_and(|turn| turn.is_some()));
    assert!(small.turn(&turns).is_ok_and(|turn| turn.is_none()));
    assert!(too_large.read().is_others());
    assert!(too_large.text.len() < 100);
}

#[test]
fn the_manager_and_the_job_id_are_known_without_the_spec() {
    let spec = json!({"managedBy": "another", "jobId": "stated", "backoffLimit": 2});
    let brief = job(spec.clone()).without_spec();
    assert!(brief.is_others());
    assert_eq!(
        (brief.spec.job_id.as_str(), brief.spec.backoff_limit),
        ("stated", None)
    );
    assert_eq!(brief.status.unwrap().job_id, "j-abcde");
    let mut bad = spec;
    bad["jobId"] = json!(["no", "name"]);
    assert!(job(bad).without_spec().is_others());
    let without: Packed<RayJob> = serde_json::from_value(json!({"metadata": {"name": "j"}})).unwrap();
    assert_eq!(
        (without.unfit(), without.without_spec().is_others()),
        (None, false)
    );
}

#[test]
fn the_port_of_a_dashboard_is_known_without_reading_its_cluster() {
    let of = |params: Value| -> Packed<RayCluster> {
        let group = json!({"rayStartParams": params, "template": {"spec": {"containers": []}}});
        serde_json::from_value(json!({"metadata": {"name": "c"}, "spec": {"headGroupSpec": group}})).unwrap()
    };
    assert_eq!(of(json!({})).extract().dashboard_port, Some(8265));
    assert_eq!(
        of(json!({"dashboard-port": "9000"})).extract().dashboard_port,
        Some(9000)
    );
    assert_eq!(of(json!("none can be read")).extract().dashboard_port, Some(8265));
    assert_eq!(job(json!({})).extract().dashboard_port, None);
}

#[test]
fn the_name_of_its_jobset_is_known_without_reading_a_cluster() {
    let of = |group: &str| -> Packed<RayCluster> {
        let template = json!({"spec": {"containers": []}});
        serde_json::from_value(json!({"metadata": {"name": "c".repeat(50)}, "spec": {
            "headGroupSpec": {"rayStartParams": {}, "template": template},
            "workerGroupSpecs": [{"groupName": group, "rayStartParams": {}, "template": template}],
        }}))
        .unwrap()
    };
    for group in ["g", "a-group-of-workers"] {
        let cluster = of(group);
        let expected = names::jobset(&"c".repeat(50), &cluster.read().spec);
        assert_eq!(cluster.extract().jobset.as_deref(), Some(expected.as_str()));
    }
}

#[test]
fn a_resource_that_is_nested_too_deep_does_not_affect_others() {
    let deep = format!("{}{}", "[".repeat(5_000), "]".repeat(5_000));
    let list = format!(
        r#"{{"metadata": {{}}, "items": [
            {{"metadata": {{"name": "a"}}, "spec": {{"managedBy": "another", "y": {deep}}}}},
            {{"metadata": {{"name": "b"}}, "spec": {{"entrypoint": {deep}}}}},
            {{"metadata": {{"name": "c"}}, "spec": {{"entrypoint": "python"}}}}]}}"#
    );
    let list: kube::core::ObjectList<Packed<RayJob>> = serde_json::from_str(&list).unwrap();
    let unfit: Vec<_> = list.items.iter().map(|job| job.unfit().is_some()).collect();
    assert_eq!(unfit, [true, true, false]);
    assert!(list.items[0].read().is_others());
}
