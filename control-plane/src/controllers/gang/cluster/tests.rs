use kube::runtime::watcher::Event;
use lockstep_api::{annotations, labels};
use lockstep_core::gang::{Node, PodPhase, Resources};
use serde_json::{Value, json};

use super::Cluster;
use crate::controllers::gang::lean_objects::{SeenNode, SeenPod};
use crate::k8s::watch::namespace_budget::Budget;

fn node(name: &str, cpus: u32) -> SeenNode {
    let node = json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": cpus.to_string()}, "images": [{"names": ["large"]}]},
    });
    serde_json::from_value(node).unwrap()
}

/// A pod of a gang with 2 CPUs.
fn pod(uid: &str, version: u32, gated: bool, node: Option<&str>, phase: &str) -> SeenPod {
    let gates: Vec<Value> = gated
        .then(|| json!({"name": labels::GANG_GATE}))
        .into_iter()
        .collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": format!("pod-{uid}"), "namespace": "ns", "uid": uid, "resourceVersion": version.to_string(),
            "annotations": {annotations::GANG: "w"},
            "labels": {
                labels::JOBSET_NAME: "js", labels::JOBSET_UID: "set", labels::RESTART_ATTEMPT: "0",
                labels::REPLICATED_JOB_NAME: "w", labels::JOB_INDEX: "0", labels::BATCH_JOB_COMPLETION_INDEX: "3",
            },
        },
        "spec": {
            "nodeName": node, "schedulingGates": gates, "priority": 7,
            "containers": [{"name": "c", "image": "none", "env": [{"name": "A", "value": "b"}],
                "resources": {"requests": {"cpu": "2"}}}],
        },
        "status": {"phase": phase},
    });
    serde_json::from_value(pod).unwrap()
}

fn listed(nodes: Vec<SeenNode>, pods: Vec<SeenPod>) -> Cluster {
    let mut cluster = Cluster::default();
    list_nodes(&mut cluster, nodes);
    list_pods(&mut cluster, pods);
    cluster
}

fn list_nodes(cluster: &mut Cluster, nodes: Vec<SeenNode>) {
    cluster.apply_node(&Event::Init);
    for node in nodes {
        cluster.apply_node(&Event::InitApply(node));
    }
    cluster.apply_node(&Event::InitDone);
}

fn list_pods(cluster: &mut Cluster, pods: Vec<SeenPod>) {
    cluster.apply_pod(&Event::Init);
    for pod in pods {
        cluster.apply_pod(&Event::InitApply(pod));
    }
    cluster.apply_pod(&Event::InitDone);
}

/// The used part of a node, in thousandths of a CPU.
fn taken(cluster: &Cluster, node: &str) -> Option<i128> {
    let node: &Node = cluster.nodes().get(node)?;
    Some(node.requested.get("cpu"))
}

#[test]
fn nothing_is_known_before_both_lists_are_complete() {
    let mut cluster = Cluster::default();
    assert!(!cluster.is_ready());
    list_nodes(&mut cluster, vec![node("n", 4)]);
    assert!(!cluster.is_ready());
    list_pods(&mut cluster, vec![]);
    assert!(cluster.is_ready());
    let four = Resources::of(
        &[(
            "cpu".to_owned(),
            k8s_openapi::apimachinery::pkg::api::resource::Quantity("4".to_owned()),
        )]
        .into(),
    );
    assert_eq!(cluster.nodes()["n"].allocatable, four);
}

#[test]
fn a_bound_pod_takes_of_its_node_until_it_ends_or_is_gone() {
    let mut cluster = listed(vec![node("n", 4)], vec![pod("a", 1, false, None, "Pending")]);
    assert_eq!(taken(&cluster, "n"), Some(0));
    assert!(cluster.apply_pod(&Event::Apply(pod("a", 2, false, Some("n"), "Pending"))));
    assert!(cluster.apply_pod(&Event::Apply(pod("b", 3, false, Some("n"), "Running"))));
    assert_eq!(taken(&cluster, "n"), Some(4000));
    assert!(cluster.apply_pod(&Event::Apply(pod("a", 4, false, Some("n"), "Succeeded"))));
    assert_eq!(taken(&cluster, "n"), Some(2000));
    assert!(cluster.apply_pod(&Event::Delete(pod("b", 5, false, Some("n"), "Running"))));
    assert_eq!(taken(&cluster, "n"), Some(0));
    let left = cluster.members("set");
    assert_eq!(left.len(), 1, "the ended pod is still in the gang");
    assert_eq!(left[0].phase, PodPhase::Succeeded);
}

#[test]
fn a_pod_of_a_node_that_is_not_known_yet_takes_of_it_once_it_is() {
    let mut cluster = listed(vec![], vec![pod("a", 1, false, Some("n"), "Running")]);
    assert!(cluster.nodes().is_empty());
    assert!(cluster.apply_node(&Event::Apply(node("n", 4))));
    assert_eq!(taken(&cluster, "n"), Some(2000));
    assert!(
        !cluster.apply_node(&Event::Apply(node("n", 4))),
        "it says the same again"
    );
    assert!(cluster.apply_node(&Event::Delete(node("n", 4))));
    assert!(cluster.nodes().is_empty());
}

#[test]
fn what_was_written_shows_at_once_and_is_not_undone_by_what_the_watch_shows_later() {
    let mut cluster = listed(vec![node("n", 4)], vec![pod("a", 1, true, None, "Pending")]);
    assert!(cluster.members("set")[0].gated);
    cluster.wrote_pod(&pod("a", 5, false, None, "Pending"));
    assert!(!cluster.members("set")[0].gated);
    assert!(!cluster.apply_pod(&Event::Apply(pod("a", 3, true, None, "Pending"))));
    assert!(!cluster.members("set")[0].gated);
    cluster.apply_pod(&Event::Delete(pod("a", 6, false, None, "Pending")));
    cluster.wrote_pod(&pod("a", 5, false, None, "Pending"));
    assert!(cluster.members("set").is_empty(), "it is gone");
}

#[test]
fn a_new_list_takes_the_place_of_all_that_was_known() {
    let mut cluster = listed(
        vec![node("n", 4), node("m", 4)],
        vec![pod("a", 1, false, Some("n"), "Running")],
    );
    list_nodes(&mut cluster, vec![node("n", 4)]);
    assert_eq!(taken(&cluster, "n"), Some(2000));
    list_pods(&mut cluster, vec![pod("b", 2, true, None, "Pending")]);
    assert_eq!(taken(&cluster, "n"), Some(0));
    let members = cluster.members("set");
    assert_eq!(members.len(), 1);
    assert_eq!((members[0].name.as_str(), members[0].priority), ("pod-b", 7));
    assert_eq!(members[0].index, Some(3));
}

#[test]
fn a_change_that_is_of_no_interest_is_none() {
    let mut cluster = listed(vec![node("n", 4)], vec![pod("a", 1, true, None, "Pending")]);
    assert!(!cluster.apply_pod(&Event::Apply(pod("a", 2, true, None, "Pending"))));
    let mut other = pod("x", 1, false, None, "Pending");
    other.0.metadata.annotations = None;
    assert!(
        !cluster.apply_pod(&Event::Apply(other)),
        "in no gang, and not bound"
    );
}

/// A pod that selects by a hundred labels of its own: some 11 kB.
fn picky(uid: &str, version: u32) -> SeenPod {
    let mut pod = pod(uid, version, true, None, "Pending");
    let labels = (0..100).map(|number| (format!("{uid}-{number}"), String::new()));
    pod.0.spec.as_mut().unwrap().node_selector = Some(labels.collect());
    pod
}

#[test]
fn lists_for_which_there_is_no_room_are_known_once_there_is() {
    let mut cluster = listed(vec![], vec![]);
    cluster.room.room = Budget::new(15_000, 15_000);
    let labels = |cluster: &Cluster, uid: &str| {
        let members = cluster.members("set");
        let pod = members.iter().find(|pod| pod.name == format!("pod-{uid}"));
        pod.unwrap().needs.node_selector.len()
    };
    cluster.apply_pod(&Event::Apply(picky("a", 1)));
    cluster.apply_pod(&Event::Apply(picky("b", 1)));
    assert_eq!((labels(&cluster, "a"), labels(&cluster, "b")), (100, 0));
    assert!(
        !cluster.apply_pod(&Event::Apply(picky("b", 2))),
        "nothing is different"
    );
    cluster.apply_pod(&Event::Delete(picky("a", 1)));
    assert!(cluster.apply_pod(&Event::Apply(picky("b", 3))));
    assert_eq!(labels(&cluster, "b"), 100);
}

#[test]
fn room_that_pods_share_is_given_back_with_the_last_of_them() {
    let mut cluster = listed(vec![], vec![]);
    cluster.room.room = Budget::new(15_000, 15_000);
    let same = |uid: &str| {
        let mut other = pod(uid, 1, true, None, "Pending");
        other.0.spec.as_mut().unwrap().node_selector = picky("a", 1).0.spec.unwrap().node_selector;
        other
    };
    cluster.apply_pod(&Event::Apply(same("a")));
    cluster.apply_pod(&Event::Apply(same("b")));
    assert!(!cluster.room.room.has("ns", 10_000));
    cluster.apply_pod(&Event::Delete(same("a")));
    cluster.room.sweep();
    assert!(!cluster.room.room.has("ns", 10_000), "the other one needs them");
    cluster.apply_pod(&Event::Delete(same("b")));
    cluster.room.sweep();
    assert!(cluster.room.room.has("ns", 15_000));
}

#[test]
fn a_pod_without_room_is_in_no_gang_until_there_is_room() {
    let mut cluster = listed(vec![node("n", 8)], vec![]);
    cluster.room.members = Budget::new(3_100, 3_100);
    let bound = |uid: &str, version: u32| pod(uid, version, false, Some("n"), "Running");
    for uid in ["a", "b", "c"] {
        cluster.apply_pod(&Event::Apply(bound(uid, 1)));
    }
    assert_eq!(cluster.members("set").len(), 2);
    assert_eq!(taken(&cluster, "n"), Some(6_000), "it still takes of its node");
    assert!(
        !cluster.apply_pod(&Event::Apply(bound("c", 2))),
        "nothing is different"
    );
    cluster.apply_pod(&Event::Delete(bound("a", 1)));
    assert!(cluster.apply_pod(&Event::Apply(bound("c", 3))));
    assert_eq!(cluster.members("set").len(), 2);
    for uid in ["b", "c"] {
        cluster.apply_pod(&Event::Delete(bound(uid, 4)));
    }
    assert!(cluster.room.members.has("ns", 3_100), "all of it is given back");
}

#[test]
fn a_bound_pod_without_room_takes_nothing_until_there_is_room() {
    let mut cluster = listed(vec![node("n", 8)], vec![]);
    cluster.room.footprints = Budget::new(2_100, 2_100);
    cluster.room.members = Budget::new(0, 0);
    let bound = |uid: &str, version: u32| pod(uid, version, false, Some("n"), "Running");
    for uid in ["a", "b"] {
        assert!(cluster.apply_pod(&Event::Apply(bound(uid, 1))));
    }
    assert!(!cluster.apply_pod(&Event::Apply(bound("c", 1))), "it is left out");
    assert_eq!(taken(&cluster, "n"), Some(4_000));
    assert_eq!(cluster.pods.known.len(), 2);
    cluster.apply_pod(&Event::Delete(bound("a", 2)));
    assert!(cluster.apply_pod(&Event::Apply(bound("c", 3))));
    assert_eq!(taken(&cluster, "n"), Some(4_000));
    for uid in ["b", "c"] {
        cluster.apply_pod(&Event::Delete(bound(uid, 4)));
    }
    assert!(
        cluster.room.footprints.has("ns", 2_100),
        "all of it is given back"
    );

    cluster.apply_pod(&Event::Init);
    cluster.listed_room.footprints = Budget::new(2_100, 2_100);
    cluster.listed_room.members = Budget::new(0, 0);
    for uid in ["a", "b", "c"] {
        cluster.apply_pod(&Event::InitApply(bound(uid, 5)));
    }
    assert_eq!(cluster.listed_pods.len(), 2, "a list keeps no more");
}
