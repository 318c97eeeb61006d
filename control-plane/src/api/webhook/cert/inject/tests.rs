use k8s_openapi::api::admissionregistration::v1::MutatingWebhookConfiguration;
use serde_json::{Value, json};

use super::{Service, injection};

const SERVICE: Service<'_> = Service {
    namespace: "ns",
    name: "service",
};

fn configuration(clients: Value) -> MutatingWebhookConfiguration {
    let webhooks: Vec<Value> = clients
        .as_array()
        .unwrap()
        .iter()
        .enumerate()
        .map(|(index, client)| {
            json!({"name": format!("w{index}"), "clientConfig": client, "sideEffects": "None", "admissionReviewVersions": ["v1"]})
        })
        .collect();
    serde_json::from_value(json!({"metadata": {"name": "c", "resourceVersion": "7"}, "webhooks": webhooks}))
        .unwrap()
}

#[test]
fn entries_that_lead_here_get_the_ca_and_others_are_left_alone() {
    let configuration = configuration(json!([
        {"service": {"namespace": "ns", "name": "service"}},
        {"service": {"namespace": "ns", "name": "other"}},
        {"service": {"namespace": "elsewhere", "name": "service"}, "caBundle": "b2xk"},
        {"url": "https://127.0.0.1/x", "caBundle": "b2xk"},
    ]));
    assert_eq!(
        injection(&configuration, SERVICE, "new"),
        Some(json!({
            "metadata": {"resourceVersion": "7"},
            "webhooks": [
                {"name": "w0", "clientConfig": {"caBundle": "bmV3"}},
                {"name": "w3", "clientConfig": {"caBundle": "bmV3"}},
            ],
        }))
    );
}

#[test]
fn who_has_the_ca_is_not_written_to() {
    let configuration = configuration(json!([
        {"service": {"namespace": "ns", "name": "service"}, "caBundle": "bmV3"},
        {"service": {"namespace": "ns", "name": "other"}},
    ]));
    assert_eq!(injection(&configuration, SERVICE, "new"), None);
    assert_eq!(
        injection(&MutatingWebhookConfiguration::default(), SERVICE, "new"),
        None
    );
}
