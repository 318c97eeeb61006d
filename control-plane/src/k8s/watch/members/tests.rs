use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use lockstep_api::{annotations, labels};

use super::*;

fn pod(name: &str, job: &str, index: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(name.to_owned());
    pod.metadata.namespace = Some("ns".to_owned());
    pod.metadata.uid = Some(format!("uid-{name}"));
    pod.metadata.annotations = Some(
        [
            (annotations::EXCLUSIVE_TOPOLOGY.to_owned(), "rack".to_owned()),
            (labels::BATCH_JOB_COMPLETION_INDEX.to_owned(), index.to_owned()),
        ]
        .into(),
    );
    pod.metadata.owner_references = Some(vec![OwnerReference {
        uid: job.to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    pod
}

fn plain(name: &str, job: &str) -> Pod {
    let mut pod = pod(name, job, "0");
    pod.metadata.annotations = None;
    pod
}

fn names(members: &MembersByJob, job: &str) -> Vec<String> {
    members
        .read(&JobRef::new("ns", job), |members| {
            Some(members.keys().cloned().collect())
        })
        .unwrap_or_default()
}

fn apply(members: &MembersByJob, events: Vec<Event<Pod>>) -> Vec<String> {
    events
        .iter()
        .flat_map(|event| members.apply(event))
        .map(|job| job.to_string())
        .collect()
}

#[test]
fn pods_are_found_by_their_job_and_changes_are_returned() {
    let members = MembersByJob::default();
    let told = apply(
        &members,
        vec![
            Event::Init,
            Event::InitApply(pod("a0", "a", "0")),
            Event::InitApply(plain("c0", "c")),
            Event::InitDone,
            Event::Apply(pod("b1", "b", "1")),
            Event::Apply(pod("b2", "b", "2")),
            Event::Delete(pod("b1", "b", "1")),
        ],
    );
    assert_eq!(told, ["ns/a", "ns/b", "ns/b", "ns/b"]);
    assert_eq!(names(&members, "a"), ["a0"]);
    assert_eq!(names(&members, "b"), ["b2"]);
    assert_eq!(names(&members, "c"), Vec::<String>::new());
}

#[test]
fn a_pod_that_names_another_namespaces_job_is_none_of_its_pods() {
    let members = MembersByJob::default();
    let mut foreign = pod("f0", "a", "0");
    foreign.metadata.namespace = Some("another".to_owned());
    let events = vec![Event::Apply(foreign.clone()), Event::Apply(pod("a1", "a", "1"))];
    apply(&members, events);
    assert_eq!(names(&members, "a"), ["a1"]);
    assert!(members.leaders(&JobRef::new("ns", "a")).is_empty());
    apply(&members, vec![Event::Delete(foreign)]);
    assert_eq!(names(&members, "a"), ["a1"]);
}

#[test]
fn a_complete_list_replaces_the_known_pods() {
    let members = MembersByJob::default();
    let first = vec![
        Event::Init,
        Event::InitApply(pod("a0", "a", "0")),
        Event::InitDone,
    ];
    apply(&members, first);
    apply(&members, vec![Event::Init, Event::InitApply(pod("b0", "b", "0"))]);
    assert_eq!(names(&members, "a"), ["a0"], "half a list says nothing");
    apply(&members, vec![Event::InitDone]);
    assert_eq!(
        (names(&members, "a"), names(&members, "b")),
        (vec![], vec!["b0".to_owned()])
    );
}

#[test]
fn pods_without_exclusive_placement_are_ignored() {
    let members = MembersByJob::default();
    let events = vec![Event::Apply(plain("a0", "a")), Event::Delete(plain("a0", "a"))];
    assert_eq!(apply(&members, events), Vec::<String>::new());
    apply(&members, vec![Event::Apply(pod("a0", "a", "0"))]);
    apply(&members, vec![Event::Apply(plain("a0", "a"))]);
    assert_eq!(
        names(&members, "a"),
        Vec::<String>::new(),
        "it no longer asks for it"
    );
}

#[test]
fn only_live_leaders_lead_and_own_deletions_show_at_once() {
    let members = MembersByJob::default();
    let events = vec![
        Event::Apply(pod("a0", "a", "0")),
        Event::Apply(pod("a1", "a", "1")),
    ];
    apply(&members, events);
    let job = JobRef::new("ns", "a");
    let leaders = || members.leaders(&job).len();
    assert_eq!(leaders(), 1);
    members.deleted(&job, "a0", "another-uid");
    assert_eq!(leaders(), 1);
    members.deleted(&job, "a0", "uid-a0");
    assert_eq!(leaders(), 0);
}
