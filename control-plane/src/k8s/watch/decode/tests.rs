use serde_json::json;

use super::*;

fn read(spec: serde_json::Value) -> PackedJobSet {
    read_at(1, spec)
}

fn read_at(generation: i64, spec: serde_json::Value) -> PackedJobSet {
    serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "ns", "uid": "u", "generation": generation},
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

#[test]
fn each_version_of_an_object_is_reported_once_and_what_is_gone_is_forgotten() {
    let mut reported = Reported::default();
    let version = |generation| read_at(generation, json!({"replicatedJobs": "none"}));
    for (generation, news) in [(1, true), (1, false), (2, true)] {
        assert_eq!(reported.is_news(&version(generation)), news, "{generation}");
    }
    // A list that contains it again.
    for event in [Event::Init, Event::InitApply(version(2)), Event::InitDone] {
        reported.follow(&event);
    }
    assert!(!reported.is_news(&version(2)));
    reported.follow(&Event::Delete(version(2)));
    assert!(reported.by_uid.is_empty());
    reported.is_news(&version(2));
    for event in [Event::<PackedJobSet>::Init, Event::InitDone] {
        reported.follow(&event);
    }
    assert!(reported.by_uid.is_empty());
}
