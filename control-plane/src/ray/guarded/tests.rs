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
    let (metadata, error) = bad.read().unwrap_err();
    assert_eq!(metadata.namespace.as_deref(), Some("ns"));
    assert_eq!(
        error,
        "spec.backoffLimit: Invalid value: \"two\": must be of type integer"
    );

    let good = job(json!({"backoffLimit": 2}));
    assert_eq!(good.meta().name.as_deref(), Some("j"));
    assert_eq!(good.read().unwrap().spec.backoff_limit, Some(2));
}
