//! Injects the CA into the webhook configurations, so that the API server trusts the certificate.
//!
//! Promises: if a configuration of that name exists, its entries that lead here have the CA, soon
//! after it appears and after any change to it. Other fields and other entries are left unchanged.
//! If it does not exist, nothing happens.

use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::ByteString;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration, WebhookClientConfig,
};
use kube::api::{Api, Patch, PatchParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Service;

/// How long to wait after a write that failed.
const TRY_AGAIN: Duration = Duration::from_secs(2);
/// The wait if there is no write to try again.
const NEVER: Duration = Duration::from_secs(24 * 60 * 60);

/// A configuration of webhooks, of either kind.
pub(super) trait Configuration:
    Resource<DynamicType = (), Scope = kube::core::ClusterResourceScope>
    + Clone
    + Debug
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
    /// The entries: names, and client configurations.
    fn entries(&self) -> Vec<(&str, &WebhookClientConfig)>;
}

impl Configuration for MutatingWebhookConfiguration {
    fn entries(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks
            .map(|webhook| (webhook.name.as_str(), &webhook.client_config))
            .collect()
    }
}

impl Configuration for ValidatingWebhookConfiguration {
    fn entries(&self) -> Vec<(&str, &WebhookClientConfig)> {
        let webhooks = self.webhooks.iter().flatten();
        webhooks
            .map(|webhook| (webhook.name.as_str(), &webhook.client_config))
            .collect()
    }
}

/// Keeps the CA in the configuration of this name, and passes each change of its bundle to
/// `report`. Never ends.
pub(super) async fn keep<K: Configuration>(
    client: &Client,
    name: &str,
    service: Service<'_>,
    mut ca: watch::Receiver<Option<String>>,
    report: impl Fn(Option<String>),
) {
    let api: Api<K> = Api::all(client.clone());
    let watch = watcher::watch_object(api.clone(), name).default_backoff();
    let mut watch = std::pin::pin!(watch);
    let mut seen: Option<Option<K>> = None;
    let mut reported = None;
    let mut next = Instant::now() + NEVER;
    loop {
        tokio::select! {
            event = watch.next() => match event {
                Some(Ok(configuration)) => seen = Some(configuration),
                Some(Err(error)) => {
                    tracing::warn!(
                        configuration = name, %error,
                        "failed to watch the webhook configuration, which does not get the CA"
                    );
                    continue;
                }
                None => return,
            },
            changed = ca.changed() => if changed.is_err() { return },
            () = tokio::time::sleep_until(next) => {}
        }
        next = Instant::now() + NEVER;
        let known = ca.borrow_and_update().clone();
        let (Some(configuration), Some(ca)) = (&seen, known) else {
            continue;
        };
        let patch = configuration
            .as_ref()
            .and_then(|configuration| injection(configuration, service, &ca));
        let injected = patch.is_none().then_some(ca);
        if injected != reported {
            reported.clone_from(&injected);
            report(injected);
        }
        let Some(patch) = patch else { continue };
        let params = PatchParams {
            field_manager: Some("lockstep-control-plane".to_owned()),
            ..PatchParams::default()
        };
        match api.patch(name, &params, &Patch::Strategic(&patch)).await {
            Ok(_) => tracing::info!(
                configuration = name,
                "injected the CA into the webhook configuration"
            ),
            // It has changed or gone: the watch shows the current object.
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {}
            Err(error) => {
                tracing::warn!(configuration = name, %error, "failed to inject the CA into the webhook configuration");
                next = Instant::now() + TRY_AGAIN;
            }
        }
    }
}

/// The change that is needed, if any: a strategic merge patch, which finds entries by their names.
fn injection(configuration: &impl Configuration, service: Service<'_>, ca: &str) -> Option<Value> {
    let ca = ByteString(ca.as_bytes().to_vec());
    let webhooks: Vec<Value> = configuration
        .entries()
        .into_iter()
        .filter(|(_, client)| leads_here(client, service) && client.ca_bundle.as_ref() != Some(&ca))
        .map(|(name, _)| json!({"name": name, "clientConfig": {"caBundle": ca}}))
        .collect();
    if webhooks.is_empty() {
        return None;
    }
    Some(json!({
        "metadata": {"resourceVersion": configuration.resource_version()},
        "webhooks": webhooks,
    }))
}

/// True if the entry uses our Service, or a URL: then the configuration is ours by its name.
fn leads_here(client: &WebhookClientConfig, service: Service<'_>) -> bool {
    match &client.service {
        Some(other) => (other.namespace.as_str(), other.name.as_str()) == (service.namespace, service.name),
        None => client.url.is_some(),
    }
}

#[cfg(test)]
mod tests {
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
        serde_json::from_value(
            json!({"metadata": {"name": "c", "resourceVersion": "7"}, "webhooks": webhooks}),
        )
        .unwrap()
    }

    #[test]
    fn entries_that_lead_here_get_the_ca_and_others_are_left_unchanged() {
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
    fn a_configuration_with_the_ca_is_not_written() {
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
}
