//! The certificate that the webhooks are served with: given as files, or made here.

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

/// Name of the MutatingWebhookConfiguration that is given the CA; upstream's.
const MUTATING: &str = "jobset-mutating-webhook-configuration";
/// Name of the ValidatingWebhookConfiguration that is given the CA; upstream's.
const VALIDATING: &str = "jobset-validating-webhook-configuration";

/// Keeps `certificate` up to date. Does not end by itself.
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
    let told = watch::Sender::new(InjectedBundles::default());
    let mutating = |bundle| told.send_modify(|told| told.mutating = bundle);
    let validating = |bundle| told.send_modify(|told| told.validating = bundle);
    tokio::join!(
        secret::keep(secret, service, client, &certificate, &ca, told.subscribe()),
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

/// What each of the webhook configurations has the API server trust wherever it leads here, as it
/// was last seen; what it should, if there is no such configuration. Nothing while that is not
/// known, or not so.
#[derive(Debug, Clone, Default)]
struct InjectedBundles {
    mutating: Option<String>,
    validating: Option<String>,
}

impl InjectedBundles {
    /// True if the API server was told of just that.
    fn of(&self, trusted: &str) -> bool {
        [&self.mutating, &self.validating]
            .into_iter()
            .all(|bundle| bundle.as_deref() == Some(trusted))
    }
}

/// The Service that leads to the webhooks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Service<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

impl Service<'_> {
    /// The name by which the API server calls it.
    fn host(self) -> String {
        format!("{}.{}.svc", self.name, self.namespace)
    }
}
