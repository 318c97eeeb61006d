use lockstep_api::ray::RayJob;
use serde_json::json;

use super::*;

fn job(spec: Value) -> Guarded<RayJob> {
    serde_json::from_value(json!({"metadata": {"name": "j", "namespace": "ns"}, "spec": spec})).unwrap()
}

#[test]
fn the_field_that_cannot_be_read_is_named_and_so_is_the_object() {
    let bad = job(json!({"backoffLimit": "two"}));
    assert_eq!(bad.meta().name.as_deref(), Some("j"));
    let (rest, error) = *bad.read().unwrap_err();
    assert_eq!(rest.metadata.namespace.as_deref(), Some("ns"));
    assert_eq!(
        error,
        "spec.backoffLimit: Invalid value: \"two\": must be of type integer"
    );

    let good = job(json!({"backoffLimit": 2}));
    assert_eq!(good.meta().name.as_deref(), Some("j"));
    assert_eq!(good.read().unwrap().spec.backoff_limit, Some(2));
}

#[test]
fn the_status_of_what_cannot_be_read_and_who_looks_after_it_are_known() {
    let of = |status: Value| -> Guarded<RayJob> {
        let spec = json!({"managedBy": "lockstep.dev/ray-controller", "backoffLimit": "two"});
        serde_json::from_value(json!({"metadata": {"name": "j"}, "spec": spec, "status": status})).unwrap()
    };
    let (rest, _) = *of(json!({"jobId": "j-abcde"})).read().unwrap_err();
    assert!(rest.is_claimed());
    assert_eq!(rest.status.unwrap().job_id, "j-abcde");
    // Nor can its status be read.
    let (rest, _) = *of(json!({"jobId": 5})).read().unwrap_err();
    assert_eq!((rest.metadata.name.as_deref(), rest.status), (Some("j"), None));
}
