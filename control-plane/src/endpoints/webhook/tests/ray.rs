//! Ray's resources: which are refused, and which pass.

use jiff::{SignedDuration, Timestamp};

use super::*;

pub(super) const CLUSTER: &str = "/validate-ray-io-v1-raycluster";
pub(super) const JOB: &str = "/validate-ray-io-v1-rayjob";
pub(super) const CRON: &str = "/validate-ray-io-v1-raycronjob";

/// An API server on which KubeRay's leader renewed its Lease this long ago.
fn kuberay(ago: SignedDuration) -> Client {
    let renewed = format!("{:.6}", Timestamp::now() - ago);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": "ray-operator-leader", "namespace": "kuberay"}, "spec": {"renewTime": renewed},
    });
    let review = json!({"spec": {}, "status": {"allowed": true}});
    api_server(Ok(BTreeMap::from([
        ("leases", leases(vec![lease])),
        ("subjectaccessreviews", review),
    ])))
}

pub(super) fn spec(more: Value) -> Value {
    let template = json!({"spec": {"containers": [{"name": "ray", "image": "none"}]}});
    let mut spec = json!({"headGroupSpec": {"rayStartParams": {}, "template": template}});
    extend(&mut spec, more);
    spec
}

fn extend(spec: &mut Value, more: Value) {
    for (key, value) in more.as_object().into_iter().flatten() {
        spec[key] = value.clone();
    }
}

fn object(kind: &str, spec: Value) -> Value {
    json!({"apiVersion": "ray.io/v1", "kind": kind, "metadata": {"name": "r", "namespace": "team"}, "spec": spec})
}

pub(super) fn cluster(more: Value) -> Value {
    object("RayCluster", spec(more))
}

pub(super) fn job(more: Value) -> Value {
    let mut job = json!({"entrypoint": "python main.py", "rayClusterSpec": spec(json!({}))});
    extend(&mut job, more);
    object("RayJob", job)
}

pub(super) fn cron(schedule: &str) -> Value {
    object(
        "RayCronJob",
        json!({"schedule": schedule, "jobTemplate": job(json!({}))["spec"]}),
    )
}

async fn passes(client: Client, path: &str, operation: &str, object: &Value, old: &Value) -> bool {
    let answer = ask_with(client, path, &review(operation, object, old)).await;
    answer["allowed"] == true
}

/// The refusal of the object.
async fn refused(path: &str, operation: &str, object: &Value, old: &Value) -> Value {
    let answer = ask(path, operation, object, old).await;
    assert_eq!(answer["allowed"], false, "{object}");
    answer["status"].clone()
}

#[tokio::test]
async fn what_can_run_passes() {
    for (path, object) in [
        (CLUSTER, cluster(json!({}))),
        (JOB, job(json!({}))),
        (CRON, cron("@daily")),
    ] {
        let answer = ask(path, "CREATE", &object, &Value::Null).await;
        assert_eq!(answer, json!({"uid": "705ab4f5", "allowed": true}));
    }
}

#[tokio::test]
async fn a_refusal_names_the_resource_and_the_field() {
    let wrong = job(json!({"backoffLimit": -1, "submissionMode": "SidecarMode"}));
    let status = refused(JOB, "CREATE", &wrong, &Value::Null).await;
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(422), &json!("Invalid"))
    );
    let message = status["message"].as_str().unwrap();
    assert!(
        message.starts_with(
            "RayJob.ray.io \"r\" is invalid: [spec.submissionMode: SidecarMode is not supported"
        ),
        "{message}"
    );
    let details = &status["details"];
    assert_eq!(
        (
            &details["group"],
            &details["kind"],
            &details["causes"][1]["field"]
        ),
        (&json!("ray.io"), &json!("RayJob"), &json!("spec.backoffLimit"))
    );
    for (path, object, expected) in [
        (
            CLUSTER,
            cluster(json!({"enableInTreeAutoscaling": true})),
            "spec.enableInTreeAutoscaling",
        ),
        (CRON, cron("often"), "spec.schedule: invalid cron schedule"),
    ] {
        let status = refused(path, "CREATE", &object, &Value::Null).await;
        let message = status["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    }
    let status = refused(
        CLUSTER,
        "CREATE",
        &cluster(json!({"workerGroupSpecs": 7})),
        &Value::Null,
    )
    .await;
    let message = status["message"].as_str().unwrap();
    assert!(
        status["code"] == 400 && message.starts_with("RayCluster: spec"),
        "{message}"
    );
    assert_eq!(
        refused(CRON, "CREATE", &job(json!({})), &Value::Null).await["code"],
        400
    );
}

#[tokio::test]
async fn what_was_invalid_before_blocks_no_update() {
    let old = cluster(json!({"enableInTreeAutoscaling": true}));
    let mut new = old.clone();
    new["spec"]["suspend"] = json!(true);
    assert_eq!(ask(CLUSTER, "UPDATE", &new, &old).await["allowed"], true);
    new["spec"]["headGroupSpec"]["template"]["spec"]["containers"] = json!([]);
    let status = refused(CLUSTER, "UPDATE", &new, &old).await;
    let message = status["message"].as_str().unwrap();
    assert!(
        message.contains("headGroupSpec should have") && !message.contains("enableInTreeAutoscaling"),
        "{message}"
    );
    // An unreadable object can be labelled, and can lose its finalizers.
    let unreadable = cluster(json!({"workerGroupSpecs": 7}));
    let mut labelled = unreadable.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(
        ask(CLUSTER, "UPDATE", &labelled, &unreadable).await["allowed"],
        true
    );
    let mut going = cluster(json!({"workerGroupSpecs": 8}));
    going["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(ask(CLUSTER, "UPDATE", &going, &unreadable).await["allowed"], true);
    assert_eq!(
        ask(CLUSTER, "DELETE", &Value::Null, &unreadable).await["allowed"],
        true
    );
    // A correction passes.
    assert_eq!(
        ask(CLUSTER, "UPDATE", &cluster(json!({})), &unreadable).await["allowed"],
        true
    );
}

#[tokio::test]
async fn resources_of_other_controllers_are_left_unchanged() {
    for wrong in [
        json!({"managedBy": "kueue.x-k8s.io/multikueue", "enableInTreeAutoscaling": true}),
        json!({"managedBy": "ray.io/kuberay-operator", "workerGroupSpecs": 7}),
    ] {
        let object = cluster(wrong);
        assert_eq!(
            ask(CLUSTER, "CREATE", &object, &Value::Null).await["allowed"],
            true
        );
    }
    // Without a manager it belongs to KubeRay while KubeRay runs.
    let open = cluster(json!({"enableInTreeAutoscaling": true}));
    let claimed =
        cluster(json!({"enableInTreeAutoscaling": true, "managedBy": "lockstep.dev/ray-controller"}));
    let create = async |ago, object| {
        passes(
            kuberay(SignedDuration::from_secs(ago)),
            CLUSTER,
            "CREATE",
            object,
            &Value::Null,
        )
        .await
    };
    assert!(create(5, &open).await && !create(300, &open).await);
    assert!(!create(5, &claimed).await);
    // If that is unknown, the refusal says so.
    let unknown = ask_with(
        api_server(Err(500)),
        CLUSTER,
        &review("CREATE", &open, &Value::Null),
    )
    .await;
    assert_eq!(unknown["status"]["code"], 500);
    assert!(!passes(api_server(Err(500)), CLUSTER, "CREATE", &claimed, &Value::Null).await);
}

#[tokio::test]
async fn nothing_is_taken_over_while_it_runs() {
    let by = |manager: &str| cluster(json!({"managedBy": manager}));
    let (ours, other, nobodys) = (
        by("lockstep.dev/ray-controller"),
        by("ray.io/kuberay-operator"),
        cluster(json!({})),
    );
    for (old, new) in [(&ours, &other), (&other, &ours), (&ours, &nobodys)] {
        let status = refused(CLUSTER, "UPDATE", new, old).await;
        let message = status["message"].as_str().unwrap();
        assert!(
            message.ends_with("spec.managedBy: the managedBy field is immutable"),
            "{message}"
        );
    }
    assert_eq!(ask(CLUSTER, "UPDATE", &ours, &nobodys).await["allowed"], true);
}

#[tokio::test]
async fn without_ray_there_are_no_webhooks_for_it() {
    let client = api_server(Ok(BTreeMap::new()));
    let without_ray = Admission {
        kuberay: None,
        ..admission(client)
    };
    let router = routes::router(without_ray, &Metrics::default().webhooks());
    let review = review("CREATE", &cluster(json!({})), &Value::Null).to_string();
    assert_eq!(post(router, CLUSTER, review).await.0, StatusCode::NOT_FOUND);
}
