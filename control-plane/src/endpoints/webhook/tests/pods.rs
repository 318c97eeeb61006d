use lockstep_api::{annotations, labels};

use super::*;

const MUTATE_POD: &str = "/mutate--v1-pod";
const VALIDATE_POD: &str = "/validate--v1-pod";
const RACK: &str = "example.com/rack";

/// An API server with the leader of a Job, either on no node or on the node `n` of rack 7.
fn with_leader(node: Option<&str>) -> Client {
    let mut leader = pod("0");
    leader["spec"]["nodeName"] = json!(node);
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let body = match request.uri().path() {
            "/api/v1/nodes/n" => json!({"metadata": {"name": "n", "labels": {RACK: "7"}}}),
            "/api/v1/namespaces/team/pods" => json!({"metadata": {}, "items": [leader.clone()]}),
            _ => status(404, "NotFound"),
        };
        async move { Ok::<_, Infallible>(Response::new(Body::from(body.to_string()))) }
    });
    Client::new(service, "default")
}

/// A pod of a JobSet with exclusive placement, as the webhook gets it: without a namespace, which
/// the request has.
fn pod(index: &str) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": format!("js-w-0-{index}-"),
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
                annotations::EXCLUSIVE_TOPOLOGY: RACK,
            },
            "ownerReferences": [{
                "apiVersion": "batch/v1", "kind": "Job", "name": "js-w-0", "uid": "job", "controller": true,
            }],
        },
        "spec": {"containers": [{"name": "c", "image": "i", "fromTheFuture": {"a": [1, 2]}}], "priority": 0},
    })
}

/// The pod after the mutating webhook.
async fn placed(client: Client, pod: &Value) -> Value {
    let answer = ask_with(client, MUTATE_POD, &review("CREATE", pod, &Value::Null)).await;
    assert_eq!(answer["allowed"], true, "{answer}");
    let mut after = pod.clone();
    if let Some(patch) = answer["patch"].as_str() {
        let patch = BASE64_STANDARD.decode(patch).unwrap();
        json_patch::patch(
            &mut after,
            &serde_json::from_slice::<json_patch::Patch>(&patch).unwrap(),
        )
        .unwrap();
    }
    after
}

#[tokio::test]
async fn a_follower_goes_where_its_leader_is_and_keeps_what_we_do_not_know() {
    let follower = pod("1");
    let after = placed(with_leader(Some("n")), &follower).await;
    let mut expected = follower.clone();
    expected["spec"]["nodeSelector"] = json!({RACK: "7"});
    expected["metadata"]["labels"][labels::PRIORITY] = json!("0");
    assert_eq!(after, expected);
    let answer = ask_with(
        with_leader(Some("n")),
        VALIDATE_POD,
        &review("CREATE", &after, &Value::Null),
    )
    .await;
    assert_eq!(answer["allowed"], true, "{answer}");
}

#[tokio::test]
async fn a_leader_gets_its_affinity() {
    let after = placed(with_leader(None), &pod("0")).await;
    let affinity = &after["spec"]["affinity"];
    for kind in ["podAffinity", "podAntiAffinity"] {
        let terms = &affinity[kind]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(terms[0]["topologyKey"], RACK, "{after}");
        assert_eq!(terms[0]["namespaceSelector"], json!({}), "{after}");
    }
}

#[tokio::test]
async fn a_follower_waits_for_its_leader() {
    let mut follower = pod("1");
    let review_of = |pod: &Value| review("CREATE", pod, &Value::Null);
    let refused = ask_with(with_leader(None), VALIDATE_POD, &review_of(&follower)).await;
    assert_eq!(refused["status"]["message"], "follower pod node selector not set");
    assert_eq!(
        (&refused["status"]["code"], &refused["status"]["reason"]),
        (&json!(403), &json!("Forbidden"))
    );
    follower["spec"]["nodeSelector"] = json!({RACK: "7"});
    let refused = ask_with(with_leader(None), VALIDATE_POD, &review_of(&follower)).await;
    assert_eq!(
        refused["status"]["message"],
        "leader pod not yet scheduled, not creating follower pod. this is an expected, transient error"
    );
}

#[tokio::test]
async fn other_pods_pass_whatever_is_in_them() {
    let mut alien =
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"priority": "high"}});
    let mut of_jobset = alien.clone();
    of_jobset["metadata"]["annotations"] = json!({labels::JOBSET_NAME: "js"});
    let mut exclusive = of_jobset.clone();
    exclusive["metadata"]["annotations"][annotations::EXCLUSIVE_TOPOLOGY] = json!(RACK);
    alien["metadata"]["annotations"] = json!("nonsense");
    for path in [MUTATE_POD, VALIDATE_POD] {
        for pod in [&alien, &of_jobset, &Value::Null] {
            let answer = ask(path, "CREATE", pod, &Value::Null).await;
            assert_eq!(answer, json!({"uid": "705ab4f5", "allowed": true}));
        }
        let answer = ask(path, "CREATE", &exclusive, &Value::Null).await;
        assert_eq!(answer["status"]["code"], 400);
        assert!(
            answer["status"]["message"]
                .as_str()
                .unwrap()
                .contains("spec.priority")
        );
        let answer = ask(path, "UPDATE", &exclusive, &exclusive).await;
        assert_eq!(answer["allowed"], true);
    }
}

#[tokio::test]
async fn a_pod_below_the_minimum_joins_its_pod_group_and_one_above_waits_behind_the_gate() {
    let of_gang = |index: &str| {
        let mut pod = pod(index);
        let annotations = pod["metadata"]["annotations"].as_object_mut().unwrap();
        annotations.remove(annotations::EXCLUSIVE_TOPOLOGY);
        annotations.insert(annotations::GANG.to_owned(), json!("w"));
        annotations.insert(annotations::GANG_MINIMUM.to_owned(), json!("2"));
        annotations.insert(annotations::GANG_POD_GROUP.to_owned(), json!("group"));
        pod
    };
    let below = placed(with_leader(None), &of_gang("1")).await;
    assert_eq!(below["spec"]["schedulingGroup"], json!({"podGroupName": "group"}));
    assert_eq!(below["spec"]["schedulingGates"], json!(null));
    assert_eq!(below["spec"]["containers"], of_gang("1")["spec"]["containers"]);
    let above = placed(with_leader(None), &of_gang("2")).await;
    assert_eq!(above["spec"]["schedulingGroup"], json!(null));
    assert_eq!(
        above["spec"]["schedulingGates"],
        json!([{"name": labels::GANG_GATE}])
    );
}
