use lockstep_api::labels;

use super::*;

fn pod() -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some("p".to_owned());
    pod.metadata.namespace = Some("ns".to_owned());
    pod.metadata.uid = Some("u".to_owned());
    pod.metadata.resource_version = Some("7".to_owned());
    pod.metadata.labels = Some([(labels::JOBSET_NAME.to_owned(), "js".to_owned())].into());
    pod.metadata.annotations = Some([("note".to_owned(), "long".to_owned())].into());
    pod
}

#[test]
fn of_a_pod_only_what_is_read_is_kept() {
    let Event::Apply(kept) = watched(Event::Apply(pod())) else {
        panic!("another event")
    };
    assert_eq!(kept.jobset(), Some(ObjectRef::new("js").within("ns")));
    assert_eq!(
        (kept.summary.name.as_str(), kept.summary.uid.as_str()),
        ("p", "u")
    );
    assert_eq!(kept.named(), "p");
    assert_eq!(kept.revision(), 7);
    assert_eq!(kept.to_object_ref(()), ObjectRef::new("p").within("ns"));
}

#[test]
fn a_pod_without_the_label_belongs_to_no_jobset() {
    let mut stray = pod();
    stray.metadata.labels = None;
    assert_eq!(WatchedPod::of(&stray).jobset(), None);
}
