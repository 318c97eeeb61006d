//! A Service with the name of the JobSet's.

use super::*;

#[tokio::test]
async fn a_jobset_whose_service_has_another_owner_gets_a_warning() {
    let review = review(
        "CREATE",
        &jobset(json!({"replicatedJobs": [worker()], "network": {"subdomain": "s"}})),
        &Value::Null,
    );
    let service = |selector: Value, ip: &str| {
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "s", "namespace": "team"},
            "spec": {"selector": selector, "clusterIP": ip},
        });
        api_server(Ok(BTreeMap::from([("s", service)])))
    };
    let answer = ask_with(service(json!({"app": "other"}), "10.0.0.1"), VALIDATE, &review).await;
    assert_eq!(answer["allowed"], true);
    let warning = "spec.network.subdomain: services \"s\" already exists: it is not this JobSet's and does not select this JobSet's pods, \
        so the pods' host names cannot be resolved; set another spec.network.subdomain";
    assert_eq!(answer["warnings"], json!([warning]));

    // A headless one without a selector, none at all, and an API server that does not answer.
    for client in [
        service(json!({}), "None"),
        api_server(Ok(BTreeMap::new())),
        api_server(Err(500)),
    ] {
        let answer = ask_with(client, VALIDATE, &review).await;
        assert_eq!(answer["allowed"], true);
        assert_eq!(answer.get("warnings").unwrap_or(&json!([])), &json!([]));
    }
}
