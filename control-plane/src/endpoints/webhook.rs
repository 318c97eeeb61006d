//! Admission webhooks. Every replica serves them from its start on.
//!
//! ```text
//! files in a directory ──┐
//! Secret, kept in shape ─┴─> certificate ──> HTTPS server ──> routes ──> jobsets, pods, Ray's resources
//!            │
//!            └─> CA bundle ──> Mutating- and ValidatingWebhookConfiguration
//! ```

mod api_servers;
mod arrivals;
mod cert;
mod jobsets;
mod object;
mod patch;
mod pods;
mod ray;
mod refusal;
mod review;
mod review_body;
mod routes;
mod server;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use kube::Client;
use lockstep_core::common::features::Features;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::config::settings::{TlsOptions, Webhooks};
use crate::controllers::placement::Placement;
use crate::controllers::ray::kuberay::KubeRay;
use crate::k8s::memory_limit;
use crate::net::serve::{Ready, listen_once_free};
use crate::net::tls::expiry;
use crate::telemetry::metrics::Metrics;
use api_servers::ApiServers;
use cert::Current;
use routes::Admission;

/// The webhooks of one replica.
pub struct Server {
    /// The address and the certificate.
    pub settings: Webhooks,
    /// TLS versions and cipher suites.
    pub tls: TlsOptions,
    /// Namespace of the product, with the webhooks' Service and Secret.
    pub namespace: String,
    /// The enabled feature gates.
    pub features: Features,
    /// True to serve webhooks for Ray's resources.
    pub ray: bool,
    /// Client of the API server.
    pub client: Client,
    /// Metrics, which include the expiry of the certificate.
    pub metrics: Arc<Metrics>,
    /// Placement of pods.
    pub placement: Placement,
    /// Set once the webhooks can be called.
    pub ready: Ready,
}

impl Server {
    /// Serves the webhooks until `shutdown`, and maintains their certificate. Waits if the address
    /// is still in use.
    ///
    /// # Errors
    /// If the TLS versions and cipher suites do not fit each other.
    pub async fn run(self, shutdown: CancellationToken) -> anyhow::Result<()> {
        let (certificate, certificates) = watch::channel(None);
        let tls = self.tls.server(Arc::new(Current(certificates.clone())))?;
        let api_servers = Arc::new(ApiServers::default());
        let serve = async {
            let Some(listener) = shutdown
                .run_until_cancelled(listen_once_free(self.settings.address, "webhook server"))
                .await
            else {
                return;
            };
            // Connections wait for the first certificate in the listener's queue.
            let mut first = certificates.clone();
            let first = shutdown.run_until_cancelled(first.wait_for(Option::is_some));
            if !matches!(first.await, Some(Ok(_))) {
                return;
            }
            self.ready.set();
            let admission = Admission {
                features: self.features,
                kuberay: self.ray.then(|| Arc::new(KubeRay::new(self.client.clone()))),
                client: self.client.clone(),
                placement: self.placement,
                log_limits: Arc::default(),
                api_servers: Arc::clone(&api_servers),
                is_short: memory_limit::is_half_taken,
                body_limits: Arc::default(),
            };
            let router = routes::router(admission, &self.metrics.webhooks());
            server::run(listener, Arc::new(tls), router, &shutdown).await;
        };
        let keep = cert::keep(
            &self.settings.certificates,
            &self.namespace,
            &self.client,
            certificate,
        );
        let report = expiry::report(&self.metrics, "webhooks", certificates.clone());
        tokio::join!(
            serve,
            shutdown.run_until_cancelled(Box::pin(keep)),
            shutdown.run_until_cancelled(api_servers.follow(&self.client)),
            shutdown.run_until_cancelled(report)
        );
        Ok(())
    }
}
