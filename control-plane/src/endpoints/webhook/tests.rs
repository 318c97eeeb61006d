mod any;
mod claims;
mod large;
mod pods;
mod ray;
mod services;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response, StatusCode};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kube::Client;
use lockstep_core::common::features::Features;
use serde_json::{Value, json};
use tower::{ServiceExt as _, service_fn};

use super::review_body::LONGEST_BODY;
use super::routes::{self, Admission};
use crate::controllers::placement::Placement;
use crate::controllers::ray::kuberay::KubeRay;
use crate::telemetry::metrics::Metrics;

const MUTATE: &str = "/mutate-jobset-x-k8s-io-v1alpha2-jobset";
const VALIDATE: &str = "/validate-jobset-x-k8s-io-v1alpha2-jobset";

/// An API server that has these volume claims and Leases, or fails.
pub(super) fn api_server(claims: Result<BTreeMap<&'static str, Value>, u16>) -> Client {
    let claims = claims.map(|mut claims| {
        claims.entry("leases").or_insert_with(|| leases(Vec::new()));
        claims
    });
    let service = service_fn(move |request: Request<kube::client::Body>| {
        let name = request.uri().path().rsplit('/').next().unwrap_or_default();
        let (code, body) = match &claims {
            Ok(claims) => match claims.get(name) {
                Some(claim) => (200, claim.clone()),
                None => (404, status(404, "NotFound")),
            },
            Err(code) => (*code, status(*code, "InternalError")),
        };
        let response = Response::builder()
            .status(code)
            .body(Body::from(body.to_string()));
        async { Ok::<_, Infallible>(response.unwrap()) }
    });
    Client::new(service, "default")
}

fn status(code: u16, reason: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason, "message": "no"})
}

/// The list of these Leases.
fn leases(leases: Vec<Value>) -> Value {
    json!({"apiVersion": "coordination.k8s.io/v1", "kind": "LeaseList", "metadata": {}, "items": leases})
}

pub(super) fn admission(client: Client) -> Admission {
    Admission {
        features: Features::default(),
        placement: Placement::without_watch(client.clone()),
        kuberay: Some(Arc::new(KubeRay::new(client.clone()))),
        client,
        log_limits: Arc::default(),
        api_servers: Arc::default(),
        is_short: || false,
        body_limits: Arc::default(),
    }
}

fn router_with(client: Client) -> Router {
    routes::router(admission(client), &Metrics::default().webhooks())
}

async fn post(router: Router, path: &str, body: impl Into<Body>) -> (StatusCode, Vec<u8>) {
    let request = Request::post(path).body(body.into()).unwrap();
    let response = router.oneshot(request).await.unwrap();
    let code = response.status();
    let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    (code, body.to_vec())
}

fn review(operation: &str, object: &Value, old: &Value) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "705ab4f5",
            "kind": {"group": "jobset.x-k8s.io", "version": "v1alpha2", "kind": "JobSet"},
            "resource": {"group": "jobset.x-k8s.io", "version": "v1alpha2", "resource": "jobsets"},
            "namespace": "team",
            "name": "js",
            "operation": operation,
            "userInfo": {"username": "somebody"},
            "object": object,
            "oldObject": old,
            "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    })
}

/// The answer to a review, which must be a review of the same request.
async fn ask_with(client: Client, path: &str, review: &Value) -> Value {
    let (code, body) = post(router_with(client), path, review.to_string()).await;
    assert_eq!(code, StatusCode::OK, "{}", String::from_utf8_lossy(&body));
    let mut answer: Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    assert_eq!(answer["kind"], "AdmissionReview");
    assert_eq!(answer["response"]["uid"], "705ab4f5");
    answer["response"].take()
}

async fn ask(path: &str, operation: &str, object: &Value, old: &Value) -> Value {
    ask_with(
        api_server(Ok(BTreeMap::new())),
        path,
        &review(operation, object, old),
    )
    .await
}

/// The stored object after the mutating webhook, and the paths that it changed.
async fn defaulted(object: &Value) -> (Value, Vec<String>) {
    let answer = ask(MUTATE, "CREATE", object, &Value::Null).await;
    patched(object, &answer)
}

/// The object with the patch of an answer, and the paths that it changed.
fn patched(object: &Value, answer: &Value) -> (Value, Vec<String>) {
    assert_eq!(answer["allowed"], true, "{answer}");
    let mut after = object.clone();
    let Some(patch) = answer["patch"].as_str() else {
        assert!(answer.get("patchType").is_none());
        return (after, Vec::new());
    };
    assert_eq!(answer["patchType"], "JSONPatch");
    let patch: json_patch::Patch = serde_json::from_slice(&BASE64_STANDARD.decode(patch).unwrap()).unwrap();
    json_patch::patch(&mut after, &patch).unwrap();
    let paths = patch.iter().map(|operation| operation.path().to_string());
    (after, paths.collect())
}

fn jobset(spec: Value) -> Value {
    json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "js", "namespace": "team"},
        "spec": spec,
    })
}

fn worker() -> Value {
    json!({
        "name": "w",
        "groupName": "default",
        "replicas": 1,
        "template": {"spec": {"template": {"spec": {"containers": [{"name": "c", "image": "i"}]}}}},
    })
}

#[tokio::test]
async fn a_new_jobset_gets_its_defaults_and_nothing_else_is_touched() {
    let mut worker = worker();
    worker["template"]["spec"]["template"]["spec"]["containers"][0]["fromTheFuture"] = json!({"deep": [1]});
    worker["template"]["spec"]["parallelism"] = json!(4);
    let object =
        jobset(json!({"replicatedJobs": [worker], "unknown": {"kept": true}, "network": {"subdomain": "s"}}));
    let (after, mut paths) = defaulted(&object).await;

    let spec = &after["spec"];
    assert_eq!(spec["successPolicy"]["operator"], "All");
    assert_eq!(spec["startupPolicy"]["startupPolicyOrder"], "AnyOrder");
    assert_eq!(
        spec["network"],
        json!({"subdomain": "s", "enableDNSHostnames": true, "publishNotReadyAddresses": true})
    );
    let job = &spec["replicatedJobs"][0]["template"]["spec"];
    assert_eq!(job["completionMode"], "Indexed");
    assert_eq!(job["template"]["spec"]["restartPolicy"], "OnFailure");

    let container = &job["template"]["spec"]["containers"][0];
    assert_eq!(container["fromTheFuture"], json!({"deep": [1]}));
    assert_eq!(spec["unknown"], json!({"kept": true}));
    paths.sort();
    assert_eq!(
        paths,
        [
            "/spec/network/enableDNSHostnames",
            "/spec/network/publishNotReadyAddresses",
            "/spec/replicatedJobs/0/template/spec/completionMode",
            "/spec/replicatedJobs/0/template/spec/template/spec/restartPolicy",
            "/spec/startupPolicy",
            "/spec/successPolicy",
        ]
    );
}

#[tokio::test]
async fn a_pattern_that_would_take_all_memory_is_refused_by_its_field() {
    let with = |patterns: Value| {
        let rule = json!({"name": "r", "action": "FailJobSet", "onJobFailureMessagePatterns": patterns});
        jobset(json!({"replicatedJobs": [worker()], "failurePolicy": {"rules": [rule]}}))
    };
    let fine = with(json!(["exit code 4[0-9]", "(?i)oom"]));
    assert_eq!(
        ask(VALIDATE, "CREATE", &fine, &Value::Null).await["allowed"],
        true
    );
    let answer = ask(
        VALIDATE,
        "CREATE",
        &with(json!(["fine", r"\pL{399}"])),
        &Value::Null,
    )
    .await;
    assert_eq!(answer["allowed"], false);
    assert_eq!(answer["status"]["code"], 422);
    let cause = &answer["status"]["details"]["causes"][0];
    assert_eq!(
        cause["field"],
        "spec.failurePolicy.rules[0].onJobFailureMessagePatterns[1]"
    );
}

#[tokio::test]
async fn what_has_its_defaults_is_not_patched() {
    let (complete, _) = defaulted(&jobset(json!({"replicatedJobs": [worker()]}))).await;
    let (again, paths) = defaulted(&complete).await;
    assert_eq!((again, paths), (complete, Vec::new()));
}

#[tokio::test]
async fn a_jobset_with_hardly_anything_in_it_gets_its_defaults_too() {
    for spec in [
        json!({}),
        json!({"replicatedJobs": [{"name": "w", "template": {}}]}),
        json!({"replicatedJobs": [{"name": "w", "template": {"spec": {}}}]}),
        json!({"replicatedJobs": [{"name": "w", "template": {"spec": {"template": {}}}}], "network": {}}),
    ] {
        let (after, _) = defaulted(&jobset(spec)).await;
        assert_eq!(after["spec"]["network"]["enableDNSHostnames"], true, "{after}");
        let job = after.pointer("/spec/replicatedJobs/0/template/spec");
        assert!(
            job.is_none_or(|job| job["completionMode"] == "Indexed"),
            "{after}"
        );
    }
    let mut without_spec = jobset(Value::Null);
    without_spec.as_object_mut().unwrap().shift_remove("spec");
    assert_eq!(
        defaulted(&without_spec).await.0["spec"]["successPolicy"]["operator"],
        "All"
    );
}

#[tokio::test]
async fn an_update_without_former_defaults_is_left_unchanged_and_a_deletion_passes() {
    let object = jobset(json!({"replicatedJobs": [worker()]}));
    let updated = ask(MUTATE, "UPDATE", &object, &object).await;
    assert_eq!(updated, json!({"uid": "705ab4f5", "allowed": true}));
    for path in [MUTATE, VALIDATE] {
        let deleted = ask(path, "DELETE", &Value::Null, &object).await;
        assert_eq!(deleted, json!({"uid": "705ab4f5", "allowed": true}));
    }
}

#[tokio::test]
async fn lists_that_are_applied_again_as_they_were_written_get_their_defaults_back() {
    let rules = json!([{"action": "FailJobSet"}]);
    let written = jobset(json!({"replicatedJobs": [worker()], "failurePolicy": {"rules": rules}}));
    let (stored, _) = defaulted(&written).await;
    // As kubectl merges: maps by their keys, lists as a whole.
    let mut applied = stored.clone();
    applied["spec"]["replicatedJobs"] = written["spec"]["replicatedJobs"].clone();
    applied["spec"]["failurePolicy"]["rules"] = rules;
    let answer = ask(MUTATE, "UPDATE", &applied, &stored).await;
    let (completed, _) = patched(&applied, &answer);
    assert_eq!(completed, stored);
    let answer = ask(VALIDATE, "UPDATE", &completed, &stored).await;
    assert_eq!(answer["allowed"], true, "{answer}");
    // If updates are not mutated, it would be stored without them.
    let answer = ask(VALIDATE, "UPDATE", &applied, &stored).await;
    let message = answer["status"]["message"].as_str().unwrap();
    assert!(message.contains("field is immutable"), "{message}");

    // A field that an update removes on purpose is not restored.
    let mut without = stored.clone();
    without["spec"]
        .as_object_mut()
        .unwrap()
        .shift_remove("successPolicy");
    let answer = ask(MUTATE, "UPDATE", &without, &stored).await;
    assert_eq!(patched(&without, &answer), (without, Vec::new()));
}

/// As `kubectl apply` sends a manifest with another `replicatedJobs[].minAvailable`: the fields
/// that it does not set keep their former values.
#[tokio::test]
async fn a_gang_that_is_applied_with_another_minimum_is_taken() {
    let mut worker = worker();
    worker["template"]["spec"]["parallelism"] = json!(4);
    let gang = json!({"replicatedJobs": [{"name": "w", "minAvailable": 3}]});
    let written = jobset(json!({"replicatedJobs": [worker], "gang": gang, "suspend": true}));
    let (stored, _) = defaulted(&written).await;
    assert_eq!(stored["spec"]["gang"]["minAvailable"], 3);
    let mut applied = stored.clone();
    applied["spec"]["gang"]["replicatedJobs"][0]["minAvailable"] = json!(2);
    let answer = ask(MUTATE, "UPDATE", &applied, &stored).await;
    let (completed, paths) = patched(&applied, &answer);
    assert_eq!(paths, ["/spec/gang/minAvailable"]);
    assert_eq!(completed["spec"]["gang"]["minAvailable"], 2);
    let answer = ask(VALIDATE, "UPDATE", &completed, &stored).await;
    assert_eq!(answer["allowed"], true, "{answer}");
}

#[tokio::test]
async fn a_setting_without_effect_passes_with_a_warning() {
    let mut object = jobset(json!({"replicatedJobs": [worker()]}));
    object["metadata"]["annotations"] = json!({"lockstep.dev/restart-grase": "5s"});
    let created = ask(VALIDATE, "CREATE", &object, &Value::Null).await;
    let warning = "metadata.annotations[lockstep.dev/restart-grase]: unknown annotation: did you mean lockstep.dev/restart-grace?";
    assert_eq!(
        created,
        json!({"uid": "705ab4f5", "allowed": true, "warnings": [warning]})
    );
    let updated = ask(VALIDATE, "UPDATE", &object, &object).await;
    assert_eq!(updated, json!({"uid": "705ab4f5", "allowed": true}));
}

#[tokio::test]
async fn a_refusal_reads_like_one_of_the_api_server() {
    let mut spec = json!({"replicatedJobs": [worker()], "successPolicy": {"operator": "All", "targetReplicatedJobs": ["x"]}});
    let one = ask(VALIDATE, "CREATE", &jobset(spec.clone()), &Value::Null).await;
    assert_eq!(one["allowed"], false);
    let status = &one["status"];
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(422), &json!("Invalid"))
    );
    let message = status["message"].as_str().unwrap();
    assert!(
        message
            .starts_with("JobSet.jobset.x-k8s.io \"js\" is invalid: spec.successPolicy.targetReplicatedJobs"),
        "{message}"
    );
    assert!(
        message.ends_with("invalid replicatedJob name 'x' does not appear in .spec.ReplicatedJobs"),
        "{message}"
    );
    let details = &status["details"];
    assert_eq!(
        (&details["name"], &details["group"], &details["kind"]),
        (&json!("js"), &json!("jobset.x-k8s.io"), &json!("JobSet"))
    );
    assert_eq!(details["causes"].as_array().unwrap().len(), 1);
    assert_eq!(details["causes"][0]["reason"], "InternalError");

    spec["network"] = json!({"subdomain": "Not.A.Name"});
    let several = ask(VALIDATE, "CREATE", &jobset(spec), &Value::Null).await;
    let message = several["status"]["message"].as_str().unwrap();
    assert!(
        message.starts_with("JobSet.jobset.x-k8s.io \"js\" is invalid: [spec.network.subdomain: Invalid value: \"Not.A.Name\": "),
        "{message}"
    );
    assert!(message.ends_with(".spec.ReplicatedJobs]"), "{message}");
    let causes = several["status"]["details"]["causes"].as_array().unwrap();
    let mut reasons: Vec<_> = causes.iter().map(|cause| cause["reason"].as_str()).collect();
    reasons.sort();
    reasons.dedup();
    assert_eq!(reasons, [Some("FieldValueInvalid"), Some("InternalError")]);
}

#[tokio::test]
async fn an_update_is_compared_with_what_was_there() {
    let old = jobset(json!({"replicatedJobs": [worker()], "suspend": false}));
    let mut new = old.clone();
    new["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(ask(VALIDATE, "UPDATE", &new, &old).await["allowed"], true);
    new["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = json!(2);
    let refused = ask(VALIDATE, "UPDATE", &new, &old).await;
    assert_eq!(refused["status"]["code"], 422);
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("spec.replicatedJobs") && message.ends_with("field is immutable"),
        "{message}"
    );
}

#[tokio::test]
async fn a_jobset_that_cannot_be_read_is_refused_with_the_name_of_the_field() {
    let mut object = jobset(json!({"replicatedJobs": [worker()]}));
    object["spec"]["replicatedJobs"][0]["replicas"] = json!("two");
    for path in [MUTATE, VALIDATE] {
        let refused = ask(path, "CREATE", &object, &Value::Null).await;
        assert_eq!(refused["status"]["code"], 400);
        let message = refused["status"]["message"].as_str().unwrap();
        assert!(
            message.ends_with(
                "spec.replicatedJobs[0].replicas: Invalid value: \"two\": must be of type integer"
            ),
            "{message}"
        );
    }
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "js"}});
    for object in [pod, Value::Null, json!(7)] {
        let refused = ask(MUTATE, "CREATE", &object, &Value::Null).await;
        assert_eq!(
            (&refused["allowed"], &refused["status"]["code"]),
            (&json!(false), &json!(400))
        );
    }
}

#[tokio::test]
async fn what_a_jobset_lacks_is_left_for_the_api_server_to_name() {
    let object = jobset(json!({"replicatedJobs": [worker()], "successPolicy": {}}));
    let passed = ask(MUTATE, "CREATE", &object, &Value::Null).await;
    assert_eq!(passed["allowed"], true);
    // If its schema did not refuse them, nothing else would.
    let refused = ask(VALIDATE, "CREATE", &object, &Value::Null).await;
    assert_eq!(refused["status"]["code"], 400);
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(
        message.ends_with("spec.successPolicy.operator: Required value"),
        "{message}"
    );
}

#[tokio::test]
async fn nonsense_is_answered_with_an_error() {
    let router = || router_with(api_server(Ok(BTreeMap::new())));
    let review = review("CREATE", &jobset(json!({})), &Value::Null);
    let mut without_request = review.clone();
    without_request["request"] = Value::Null;
    let mut old_version = review.clone();
    old_version["apiVersion"] = json!("admission.k8s.io/v1beta1");
    let mut without_uid = review.clone();
    without_uid["request"]
        .as_object_mut()
        .unwrap()
        .shift_remove("uid");
    let deep = format!("{}1{}", "[".repeat(100_000), "]".repeat(100_000));
    for body in [
        String::new(),
        "}{".to_owned(),
        "null".to_owned(),
        "{}".to_owned(),
        deep,
        without_request.to_string(),
        old_version.to_string(),
        without_uid.to_string(),
        json!({"apiVersion": "x".repeat(1 << 20), "kind": "AdmissionReview"}).to_string(),
    ] {
        for path in [MUTATE, VALIDATE] {
            let (code, answer) = post(router(), path, body.clone()).await;
            assert_eq!(code, StatusCode::BAD_REQUEST, "{body:.80}");
            // The answer is short for any input, and so is the line in the log.
            assert!(!answer.is_empty() && answer.len() < 2048, "{}", answer.len());
        }
    }
    let (code, _) = post(router(), MUTATE, vec![b' '; LONGEST_BODY + 1]).await;
    assert_eq!(code, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(post(router(), "/", "{}").await.0, StatusCode::NOT_FOUND);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_review_hides_no_refusal_in_the_log() {
    let admission = admission(api_server(Ok(BTreeMap::new())));
    let log_limits = Arc::clone(&admission.log_limits);
    let router = routes::router(admission, &Metrics::default().webhooks());
    for _ in 0..100 {
        let (code, _) = post(router.clone(), VALIDATE, "{}").await;
        assert_eq!(code, StatusCode::BAD_REQUEST);
    }
    assert_eq!(log_limits.unreadable.next(), None);
    assert_eq!(log_limits.refused.next(), Some(0));
    assert_eq!(log_limits.late.next(), Some(0));
}

#[tokio::test]
async fn calls_are_counted_under_upstreams_names() {
    let metrics = Metrics::default();
    let router = routes::router(admission(api_server(Ok(BTreeMap::new()))), &metrics.webhooks());
    let count = |path: &str, code: u16| {
        let text = metrics.encode().unwrap();
        let series =
            format!("controller_runtime_webhook_requests_total{{webhook=\"{path}\",code=\"{code}\"}} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&series));
        found.map(str::to_owned)
    };
    for path in [MUTATE, VALIDATE, "/mutate--v1-pod", "/validate-ray-io-v1-rayjob"] {
        assert_eq!(count(path, 200).as_deref(), Some("0"), "{path}");
        assert_eq!(count(path, 500).as_deref(), Some("0"), "{path}");
    }
    assert_eq!(
        post(router.clone(), MUTATE, "{}").await.0,
        StatusCode::BAD_REQUEST
    );
    assert_eq!(count(MUTATE, 400).as_deref(), Some("1"));
    assert_eq!(post(router, "/elsewhere", "{}").await.0, StatusCode::NOT_FOUND);
    let text = metrics.encode().unwrap();
    assert!(!text.contains("elsewhere"), "{text}");
    for series in ["requests_in_flight", "latency_seconds_count"] {
        let value = u8::from(series.starts_with("latency"));
        let line = format!("controller_runtime_webhook_{series}{{webhook=\"{MUTATE}\"}} {value}");
        assert!(text.lines().any(|found| found == line), "no {line} in {text}");
    }
}
