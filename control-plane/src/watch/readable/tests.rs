use serde_json::json;

use super::*;

fn read(spec: serde_json::Value) -> PackedJobSet {
    serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "ns", "uid": "u"},
        "spec": spec,
    }))
    .unwrap()
}

fn good() -> PackedJobSet {
    read(json!({"replicatedJobs": []}))
}

fn bad() -> PackedJobSet {
    read(json!({"replicatedJobs": "none"}))
}

#[test]
fn an_object_that_cannot_be_read_is_named_and_counts_as_absent() {
    let (event, unreadable) = split(Event::Apply(bad()));
    let Some(Event::Delete(jobset)) = event else {
        panic!("{event:?}")
    };
    assert_eq!(jobset.key().name, "js");
    assert_eq!(
        unreadable.unwrap().1.to_string(),
        "spec.replicatedJobs: Invalid value: \"none\": must be of type array"
    );
    let (event, unreadable) = split(Event::InitApply(bad()));
    assert!(event.is_none() && unreadable.is_some());
    let (event, unreadable) = split(Event::Delete(bad()));
    assert!(matches!(event, Some(Event::Delete(_))) && unreadable.is_none());
}

#[test]
fn what_can_be_read_passes_unchanged() {
    assert!(matches!(
        split(Event::Apply(good())),
        (Some(Event::Apply(_)), None)
    ));
    assert!(matches!(
        split(Event::InitApply(good())),
        (Some(Event::InitApply(_)), None)
    ));
    assert!(matches!(
        split(Event::Delete(good())),
        (Some(Event::Delete(_)), None)
    ));
    assert!(matches!(split(Event::Init), (Some(Event::Init), None)));
    assert!(matches!(split(Event::InitDone), (Some(Event::InitDone), None)));
}
