mod controller;
mod fake;

use k8s_openapi::api::core::v1::Pod;
use kube::runtime::watcher::Event;
use serde_json::{Value, json};

use super::*;
use fake::Api;

const RACK: &str = "example.com/rack";

/// A pod of Job `js-w-0` with UID `job`. The random suffix distinguishes it from others with its
/// index.
fn pod(index: &str, end: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": format!("js-w-0-{index}-{end}"),
            "namespace": "ns",
            "uid": format!("uid-{index}-{end}"),
            "labels": {
                labels::JOBSET_NAME: "js",
                labels::REPLICATED_JOB_NAME: "w",
                labels::JOB_INDEX: "0",
                labels::JOB_KEY: "key",
                labels::BATCH_JOB_COMPLETION_INDEX: index,
            },
            "annotations": {
                labels::JOBSET_NAME: "js",
                labels::BATCH_JOB_COMPLETION_INDEX: index,
                lockstep_api::annotations::EXCLUSIVE_TOPOLOGY: RACK,
            },
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": "js-w-0", "uid": "job", "controller": true,
            }],
        },
        "spec": {"containers": [], "priority": 0},
    })
}

fn with(mut pod: Value, pointer: &str, value: Value) -> Value {
    let (parent, key) = pointer.rsplit_once('/').unwrap();
    pod.pointer_mut(parent).unwrap()[key] = value;
    pod
}

fn on(pod: Value, node: &str) -> Value {
    with(pod, "/spec/nodeName", json!(node))
}

fn selecting(pod: Value, domain: &str) -> Value {
    with(pod, "/spec/nodeSelector", json!({RACK: domain}))
}

fn typed(pod: &Value) -> Pod {
    serde_json::from_value(pod.clone()).unwrap()
}

/// A placement controller with this API server. Its watch has shown `seen`.
fn placement(api: &Api, seen: &[Value]) -> Placement {
    let members = MembersByJob::default();
    for pod in seen {
        members.apply(&Event::Apply(typed(pod)));
    }
    Placement {
        client: api.client(),
        members: Arc::new(members),
        domains: Domains::new(api.client()),
        turns: Arc::new(Turns::new(AT_ONCE, OF_ONE)),
    }
}

async fn mutated(placement: &Placement, pod: &Value) -> Option<Pod> {
    placement.mutate(&typed(pod)).await.unwrap()
}

async fn refusal(placement: &Placement, pod: &Value) -> String {
    placement.validate(&typed(pod)).await.unwrap_err().to_string()
}

const NOT_SCHEDULED: &str =
    "leader pod not yet scheduled, not creating follower pod. this is an expected, transient error";

#[tokio::test]
async fn a_leader_gets_its_affinity_without_a_request() {
    let api = Api::default();
    let placement = placement(&api, &[]);
    let changed = mutated(&placement, &pod("0", "a")).await.unwrap();
    assert!(
        changed
            .spec
            .unwrap()
            .affinity
            .unwrap()
            .pod_anti_affinity
            .is_some()
    );
    placement.validate(&typed(&pod("0", "a"))).await.unwrap();
    assert_eq!(api.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn a_follower_gets_the_domain_of_the_leader_that_the_watch_shows() {
    let api = Api::default().node("n1", json!({RACK: "r1"}));
    let placement = placement(&api, &[on(pod("0", "a"), "n1")]);
    for index in ["1", "2", "3"] {
        let changed = mutated(&placement, &pod(index, "a")).await.unwrap();
        let selector = changed.spec.clone().unwrap().node_selector.unwrap();
        assert_eq!(selector[RACK], "r1");
        placement.validate(&changed).await.unwrap();
    }
    assert_eq!(api.requests(), ["GET /api/v1/nodes/n1"], "once for all followers");
}

#[tokio::test]
async fn a_follower_finds_a_leader_that_the_watch_does_not_show_yet() {
    let api = Api::default()
        .node("n1", json!({RACK: "r1"}))
        .pod(on(pod("0", "a"), "n1"))
        .pod(on(pod("2", "a"), "n1"));
    let placement = placement(&api, &[pod("2", "a")]);
    let changed = mutated(&placement, &pod("1", "a")).await.unwrap();
    assert_eq!(changed.spec.unwrap().node_selector.unwrap()[RACK], "r1");
    assert_eq!(
        api.requests(),
        [
            "GET /api/v1/namespaces/ns/pods jobset.sigs.k8s.io/jobset-name=js,jobset.sigs.k8s.io/replicatedjob-name=w,\
             jobset.sigs.k8s.io/job-index=0,batch.kubernetes.io/job-completion-index=0",
            "GET /api/v1/nodes/n1",
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn a_search_without_an_answer_ends_and_frees_its_turn() {
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
    });
    let placement = Placement {
        client: Client::new(silent, "default"),
        ..placement(&Api::default(), &[])
    };
    for _ in 0..2 * OF_ONE {
        assert_eq!(
            refusal(&placement, &selecting(pod("1", "a"), "r1")).await,
            "looking for the leader pod: not found within 5 s; try again"
        );
    }
}

#[tokio::test]
async fn a_leader_is_one_by_its_annotation() {
    let unlabelled = |mut pod: Value| {
        let labels = pod.pointer_mut("/metadata/labels").and_then(Value::as_object_mut);
        labels.unwrap().remove(labels::BATCH_JOB_COMPLETION_INDEX);
        pod
    };
    let api = Api::default()
        .node("n1", json!({RACK: "r1"}))
        .pod(unlabelled(on(pod("0", "a"), "n1")))
        .pod(unlabelled(on(pod("2", "a"), "n1")));
    let placement = placement(&api, &[]);
    let changed = mutated(&placement, &unlabelled(pod("1", "a"))).await.unwrap();
    assert_eq!(changed.spec.unwrap().node_selector.unwrap()[RACK], "r1");
}

#[tokio::test]
async fn a_follower_is_refused_until_its_leader_is_scheduled() {
    let api = Api::default().node("n1", json!({RACK: "r1"}));
    let before = placement(&api, &[pod("0", "a")]);
    let follower = pod("1", "a");
    let changed = mutated(&before, &follower).await.unwrap();
    assert_eq!(
        changed.spec.unwrap().node_selector,
        None,
        "only its priority is noted"
    );
    assert_eq!(
        refusal(&before, &follower).await,
        "follower pod node selector not set"
    );
    assert_eq!(
        refusal(&before, &selecting(follower.clone(), "r1")).await,
        NOT_SCHEDULED
    );
    before
        .members
        .apply(&Event::Apply(typed(&on(pod("0", "a"), "n1"))));
    let changed = mutated(&before, &follower).await.unwrap();
    before.validate(&changed).await.unwrap();
}

#[tokio::test]
async fn a_leader_that_is_deleted_has_ended_or_belongs_to_an_earlier_job_is_not_followed() {
    let earlier = with(
        on(pod("0", "b"), "n1"),
        "/metadata/ownerReferences/0/uid",
        json!("earlier"),
    );
    let going = with(
        on(pod("0", "a"), "n1"),
        "/metadata/deletionTimestamp",
        json!("2026-01-01T00:00:00Z"),
    );
    let ended = with(on(pod("0", "c"), "n1"), "/status", json!({"phase": "Failed"}));
    let missing = "expected 1 leader pod (js-w-0-0), but got 0. this is an expected, transient error";
    let other = "follower pod owner UID (job) != leader pod owner UID (earlier)";
    let follower = selecting(pod("1", "a"), "r1");
    for (leader, message) in [(going, missing), (ended, missing), (earlier, other)] {
        let api = Api::default().pod(leader.clone());
        let placement = placement(&api, &[leader]);
        assert_eq!(
            mutated(&placement, &follower).await.map(|pod| pod.spec),
            mutated_spec(&follower)
        );
        assert_eq!(refusal(&placement, &follower).await, message);
    }
}

/// The spec of a follower without a leader.
fn mutated_spec(follower: &Value) -> Option<Option<k8s_openapi::api::core::v1::PodSpec>> {
    Some(typed(follower).spec)
}

#[tokio::test]
async fn a_refusal_names_the_node_without_a_domain() {
    let leader = on(pod("0", "a"), "n1");
    let api = Api::default().node("n1", json!({"disk": "ssd"}));
    let error = placement(&api, std::slice::from_ref(&leader))
        .mutate(&typed(&pod("1", "a")))
        .await;
    assert_eq!(
        error.unwrap_err().to_string(),
        format!("node does not have topology label: {RACK}")
    );
    let error = placement(&Api::default(), &[leader])
        .mutate(&typed(&pod("1", "a")))
        .await;
    assert_eq!(error.unwrap_err().to_string(), "nodes \"n1\" not found");
}

#[tokio::test]
async fn other_pods_cost_no_request() {
    let api = Api::default();
    let placement = placement(&api, &[]);
    let foreign = with(pod("1", "a"), "/metadata/annotations", json!({}));
    assert_eq!(mutated(&placement, &foreign).await, None);
    placement.validate(&typed(&foreign)).await.unwrap();
    assert_eq!(api.requests(), Vec::<String>::new());
}
