//! The certificate of the hub and the platform API: one per process, kept current.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::Client;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use rustls::ServerConfig;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::authority::{CA_SECRET, TlsError};
use super::expiry;
use super::hub::{CA_CONFIG_MAP, Cluster, from_dir};
use super::serving::{Certificate, grpc};
use crate::k8s::{namespace, retry};
use crate::telemetry::metrics::Metrics;

/// How often to check if the CA is due for rotation. Writes and deletions by others are seen at
/// once.
const LOOK: Duration = Duration::from_secs(600);
/// The shortest time between two checks: another client may undo each write.
const PAUSE: Duration = Duration::from_secs(1);
/// The longest wait after a failure.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// The serving certificate and key.
pub(crate) struct HubIdentity {
    client: Client,
    namespace: String,
    /// Directory of the CA; otherwise a Secret.
    dir: Option<PathBuf>,
    certificate: watch::Sender<Certificate>,
}

impl HubIdentity {
    pub(crate) fn new(client: Client, namespace: String, dir: Option<PathBuf>) -> Self {
        Self {
            client,
            namespace,
            dir,
            certificate: watch::Sender::new(None),
        }
    }

    /// TLS with the current certificate, once there is one: the API server may be unreachable at
    /// the start.
    ///
    /// # Errors
    /// rustls does not support the configuration.
    pub(crate) async fn ready(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut certificate = self.certificate.subscribe();
        // The sender is `self`.
        let _ = certificate.wait_for(Option::is_some).await;
        Ok(grpc(certificate)?)
    }

    /// Reports the certificate's expiry as a metric until `shutdown`.
    pub(crate) async fn report_expiry(&self, metrics: &Metrics, shutdown: CancellationToken) {
        let report = expiry::report(metrics, "hub", self.certificate.subscribe());
        let _ = shutdown.run_until_cancelled(report).await;
    }

    /// Keeps the certificate and its CA current until `shutdown`.
    pub(crate) async fn keep(&self, shutdown: CancellationToken) {
        let _ = shutdown.run_until_cancelled(Box::pin(self.keep_current())).await;
    }

    async fn keep_current(&self) {
        let mut cluster = Cluster::default();
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let changes = watcher::watch_object(secrets, CA_SECRET).default_backoff();
        let mut changes = std::pin::pin!(changes);
        // Daemons' pods cannot start without this ConfigMap.
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let published = watcher::watch_object(maps, CA_CONFIG_MAP).default_backoff();
        let mut published = std::pin::pin!(published);
        let mut failures = 0;
        loop {
            let checked = self.check(&mut cluster).await;
            if let Err(error) = checked {
                failures += 1;
                let wait = retry::delay(failures).min(LONGEST_WAIT);
                tracing::warn!(%error, ?wait, "cannot check the hub's certificate, will retry");
                tokio::time::sleep(wait).await;
                continue;
            }
            failures = 0;
            tokio::time::sleep(PAUSE).await;
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                // Another replica wrote it, or a client deleted it.
                changed = changes.next(), if self.dir.is_none() => if let Some(Err(error)) = changed {
                    tracing::debug!(%error, "cannot watch the hub's authority");
                },
                changed = published.next(), if self.dir.is_none() => if let Some(Err(error)) = changed {
                    tracing::debug!(%error, "cannot watch the published hub authority");
                },
            }
        }
    }

    async fn check(&self, cluster: &mut Cluster) -> Result<(), TlsError> {
        let certificate = match &self.dir {
            Some(_) if self.certificate.borrow().is_some() => None,
            Some(dir) => Some(from_dir(dir)?),
            None => {
                namespace::ensure(&self.client, &self.namespace)
                    .await
                    .map_err(Box::new)?;
                cluster
                    .check(&self.client, &self.namespace, Timestamp::now())
                    .await?
            }
        };
        if certificate.is_some() {
            self.certificate.send_replace(certificate);
        }
        Ok(())
    }
}
