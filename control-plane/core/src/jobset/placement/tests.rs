mod admission;
mod eviction;

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{PodCondition, PodSpec, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{OwnerReference, Time};

use super::*;

const RACK: &str = "example.com/rack";

fn map<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// A pod `js-w-0-<index>-x` of a Job with UID `job`, as the Job controller creates it.
fn pod(index: &str) -> Pod {
    let mut pod = Pod::default();
    pod.metadata.name = Some(format!("js-w-0-{index}-x"));
    pod.metadata.uid = Some(format!("uid-{index}"));
    pod.metadata.labels = Some(map([
        (labels::JOBSET_NAME, "js"),
        (labels::REPLICATED_JOB_NAME, "w"),
        (labels::JOB_INDEX, "0"),
        (labels::JOB_KEY, "key"),
    ]));
    pod.metadata.annotations = Some(map([
        (labels::JOBSET_NAME, "js"),
        (labels::BATCH_JOB_COMPLETION_INDEX, index),
        (annotations::EXCLUSIVE_TOPOLOGY, RACK),
    ]));
    pod.metadata.owner_references = Some(vec![OwnerReference {
        uid: "job".to_owned(),
        controller: Some(true),
        ..OwnerReference::default()
    }]);
    pod.spec = Some(PodSpec::default());
    pod
}

fn with(mut pod: Pod, change: impl FnOnce(&mut Pod)) -> Pod {
    change(&mut pod);
    pod
}

fn spec(pod: &mut Pod) -> &mut PodSpec {
    pod.spec.get_or_insert_default()
}

fn selecting(pod: Pod, key: &str, value: &str) -> Pod {
    with(pod, |pod| {
        spec(pod)
            .node_selector
            .get_or_insert_default()
            .insert(key.to_owned(), value.to_owned());
    })
}

fn on(pod: Pod, node: &str) -> Pod {
    with(pod, |pod| spec(pod).node_name = Some(node.to_owned()))
}

fn in_phase(pod: Pod, phase: &str) -> Pod {
    with(pod, |pod| {
        pod.status.get_or_insert_default().phase = Some(phase.to_owned());
    })
}

fn going(pod: Pod) -> Pod {
    with(pod, |pod| {
        pod.metadata.deletion_timestamp = Some(Time(crate::common::testing::at(0)));
    })
}

fn owned_by(pod: Pod, job: Option<&str>) -> Pod {
    with(pod, |pod| match (job, &mut pod.metadata.owner_references) {
        (Some(job), Some(owners)) => owners[0].uid = job.to_owned(),
        (_, owners) => *owners = None,
    })
}

fn annotated(pod: Pod, key: &str) -> Pod {
    with(pod, |pod| {
        let all = pod.metadata.annotations.get_or_insert_default();
        all.insert(key.to_owned(), "true".to_owned());
    })
}

fn without_annotation(pod: Pod, key: &str) -> Pod {
    with(pod, |pod| {
        pod.metadata.annotations.get_or_insert_default().remove(key);
    })
}

fn member(pod: &Pod) -> Member {
    Member::of(pod).unwrap()
}

#[test]
fn a_topology_that_can_be_no_label_makes_no_member() {
    let asking = |bytes: usize| {
        with(pod("0"), |pod| {
            let all = pod.metadata.annotations.get_or_insert_default();
            all.insert(annotations::EXCLUSIVE_TOPOLOGY.to_owned(), "x".repeat(bytes));
        })
    };
    assert_eq!(member(&asking(317)).topology.len(), 317);
    assert_eq!(Member::of(&asking(318)), None);
}

#[test]
fn only_pods_that_ask_for_exclusive_placement_by_affinity_are_members() {
    assert_eq!(
        Member::of(&without_annotation(pod("0"), annotations::EXCLUSIVE_TOPOLOGY)),
        None
    );
    assert_eq!(
        Member::of(&annotated(pod("0"), annotations::NODE_SELECTOR_STRATEGY)),
        None
    );
    let leader = member(&on(pod("0"), "n"));
    assert_eq!((leader.role, leader.node.as_deref()), (Role::Leader, Some("n")));
    assert_eq!(
        (leader.job.as_deref(), leader.topology.as_str()),
        (Some("job"), RACK)
    );
    let follower = member(&selecting(pod("10"), RACK, "r1"));
    assert_eq!(
        (follower.role, follower.selected.as_deref()),
        (Role::Follower, Some("r1"))
    );
}

#[test]
fn a_pod_that_is_going_or_has_ended_is_not_alive() {
    let alive = |pod: Pod| member(&pod).alive;
    assert!(alive(pod("0")) && alive(in_phase(pod("0"), "Running")));
    assert!(!alive(going(pod("0"))));
    assert!(!alive(in_phase(pod("0"), "Failed")) && !alive(in_phase(pod("0"), "Succeeded")));
}

#[test]
fn a_pod_is_marked_only_by_a_true_condition() {
    let marked = |type_: &str, status: &str| {
        let condition = PodCondition {
            type_: type_.to_owned(),
            status: status.to_owned(),
            ..PodCondition::default()
        };
        let status = PodStatus {
            conditions: Some(vec![condition]),
            ..PodStatus::default()
        };
        member(&with(pod("1"), |pod| pod.status = Some(status))).marked
    };
    assert!(marked("DisruptionTarget", "True"));
    assert!(!marked("DisruptionTarget", "False") && !marked("Ready", "True"));
}
