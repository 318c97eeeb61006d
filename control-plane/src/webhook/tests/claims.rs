//! Volume claims that exist before their JobSet.

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
