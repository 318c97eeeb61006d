//! Volume claims that exist before their JobSet.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

fn with_claims() -> Value {
    let mut worker = worker();
    worker["template"]["spec"]["completionMode"] = json!("Indexed");
    worker["template"]["spec"]["template"]["spec"]["containers"][0]["volumeMounts"] =
        json!([{"name": "data", "mountPath": "/data"}]);
    jobset(json!({
        "replicatedJobs": [worker],
        "volumeClaimPolicies": [{
            "templates": [{"metadata": {"name": "data"}, "spec": claim_spec("1Gi")}],
            "retentionPolicy": {"whenDeleted": "Retain"},
        }],
    }))
}

fn claim_spec(size: &str) -> Value {
    json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}})
}

#[tokio::test]
async fn claims_that_exist_must_be_the_same() {
    let review = review("CREATE", &with_claims(), &Value::Null);
    let claim = |size| {
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data-js", "namespace": "team"}, "spec": claim_spec(size),
        });
        api_server(Ok(BTreeMap::from([("data-js", claim)])))
    };
    let none = api_server(Ok(BTreeMap::new()));
    assert_eq!(ask_with(none, VALIDATE, &review).await["allowed"], true);
    assert_eq!(ask_with(claim("1Gi"), VALIDATE, &review).await["allowed"], true);
    let refused = ask_with(claim("2Gi"), VALIDATE, &review).await;
    let message = refused["status"]["message"].as_str().unwrap();
    let field = "spec.volumeClaimPolicies[0].template[0].spec: Invalid value: {";
    assert!(message.contains(field), "{message}");
    assert!(
        message.contains("}: spec does not match existing PVC data-js in namespace team"),
        "{message}"
    );
}

#[tokio::test]
async fn claims_that_cannot_be_looked_up_are_refused_as_by_upstream() {
    let review = review("CREATE", &with_claims(), &Value::Null);
    let refused = ask_with(api_server(Err(500)), VALIDATE, &review).await;
    let sentence = "Internal error: failed to check for existing PVC data-js: no";
    let field = "spec.volumeClaimPolicies[0].template[0]";
    let status = &refused["status"];
    assert_eq!(
        (&status["code"], &status["reason"]),
        (&json!(422), &json!("Invalid"))
    );
    assert_eq!(
        status["message"],
        format!("JobSet.jobset.x-k8s.io \"js\" is invalid: {field}: {sentence}")
    );
    assert_eq!(
        status["details"]["causes"],
        json!([{"field": field, "message": sentence, "reason": "InternalError"}])
    );
}

fn with_many_claims(claims: usize) -> Value {
    let mut jobset = with_claims();
    let names = || (0..claims).map(|claim| format!("c{claim}"));
    let template = |name: String| json!({"metadata": {"name": name}, "spec": claim_spec("1Gi")});
    jobset["spec"]["volumeClaimPolicies"][0]["templates"] = names().map(template).collect();
    let mount = |name: String| json!({"name": name, "mountPath": format!("/{name}")});
    let container =
        &mut jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0];
    container["volumeMounts"] = names().map(mount).collect();
    jobset
}

#[tokio::test]
async fn each_of_many_claims_that_exist_is_compared() {
    let review = review("CREATE", &with_many_claims(100), &Value::Null);
    let claim = |size| json!({"metadata": {"name": "c"}, "spec": claim_spec(size)});
    let claims = BTreeMap::from([
        ("c3-js", claim("2Gi")),
        ("c50-js", claim("1Gi")),
        ("c99-js", claim("2Gi")),
    ]);
    let refused = ask_with(api_server(Ok(claims)), VALIDATE, &review).await;
    let causes = refused["status"]["details"]["causes"].as_array().unwrap();
    let fields: Vec<_> = causes
        .iter()
        .map(|cause| cause["field"].as_str().unwrap())
        .collect();
    assert_eq!(
        fields,
        [
            "spec.volumeClaimPolicies[0].template[3].spec",
            "spec.volumeClaimPolicies[0].template[99].spec"
        ]
    );
}

#[tokio::test]
async fn a_claim_that_says_too_much_to_be_compared_is_refused_with_why() {
    let mut spec = claim_spec("1Gi");
    spec["selector"] = json!({"matchLabels": {"a": "a".repeat(10_000)}});
    let claim = json!({"metadata": {"name": "data-js"}, "spec": spec});
    let review = review("CREATE", &with_claims(), &Value::Null);
    let api_server = api_server(Ok(BTreeMap::from([("data-js", claim)])));
    let refused = ask_with(api_server, VALIDATE, &review).await;
    let message = refused["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("failed to check for existing PVC data-js"),
        "{message}"
    );
    assert!(message.contains("no more than 8192 to be compared"), "{message}");
}

/// Checks how many claims are looked up at once, over all reviews.
#[tokio::test]
async fn all_reviews_together_look_up_few_claims_at_once() {
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&most);
    let service = service_fn(move |_: Request<kube::client::Body>| {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        async move {
            most.fetch_max(now.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            now.fetch_sub(1, Ordering::Relaxed);
            let body = Body::from(status(404, "NotFound").to_string());
            Ok::<_, Infallible>(Response::builder().status(404).body(body).unwrap())
        }
    });
    let client = Client::new(service, "default");
    let review = review("CREATE", &with_many_claims(20), &Value::Null);
    let all = (0..5).map(|_| ask_with(client.clone(), VALIDATE, &review));
    for answer in futures::future::join_all(all).await {
        assert_eq!(answer["allowed"], true, "{answer}");
    }
    let most = counted.load(Ordering::Relaxed);
    assert!((1..=8).contains(&most), "{most}");
}
