//! The serving certificate of the webhooks: from files, or generated here.

mod files;
mod inject;
mod pair;
mod secret;

use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingWebhookConfiguration,
};
use kube::Client;
use tokio::sync::watch;

use crate::config::settings::WebhookCertificates;
pub(super) use crate::net::tls::{Certificate, Current};

#[cfg(test)]
pub(super) use pair::Pair;

/// Name of the MutatingWebhookConfiguration that gets the CA; upstream's.
const MUTATING: &str = "jobset-mutating-webhook-configuration";
/// Name of the ValidatingWebhookConfiguration that gets the CA; upstream's.
const VALIDATING: &str = "jobset-validating-webhook-configuration";

/// Keeps `certificate` up to date. Never ends.
pub(super) async fn keep(
    source: &WebhookCertificates,
    namespace: &str,
    client: &Client,
    certificate: watch::Sender<Certificate>,
) {
    let (service, secret) = match source {
        WebhookCertificates::Directory(dir) => return files::follow(dir, &certificate).await,
        WebhookCertificates::Managed { service, secret } => (service, secret),
    };
    let service = Service {
        namespace,
        name: service,
    };
    let ca = watch::Sender::new(None);
    let injected = watch::Sender::new(InjectedBundles::default());
    let mutating = |bundle| injected.send_modify(|injected| injected.mutating = bundle);
    let validating = |bundle| injected.send_modify(|injected| injected.validating = bundle);
    tokio::join!(
        secret::keep(secret, service, client, &certificate, &ca, injected.subscribe()),
        inject::keep::<MutatingWebhookConfiguration>(client, MUTATING, service, ca.subscribe(), mutating),
        inject::keep::<ValidatingWebhookConfiguration>(
            client,
            VALIDATING,
            service,
            ca.subscribe(),
            validating
        ),
    );
}

/// The CA bundle in each of the webhook configurations, as last seen in all entries that lead here.
/// If there is no such configuration, the bundle that it should have. `None` while that is not
/// known, or while an entry has another bundle.
#[derive(Debug, Clone, Default)]
struct InjectedBundles {
    mutating: Option<String>,
    validating: Option<String>,
}

impl InjectedBundles {
    /// True if both configurations have exactly this bundle.
    fn are(&self, trusted: &str) -> bool {
        [&self.mutating, &self.validating]
            .into_iter()
            .all(|bundle| bundle.as_deref() == Some(trusted))
    }
}

/// The Service of the webhooks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl Service<'_> {
    /// The name that the API server uses.
    fn host(self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}
