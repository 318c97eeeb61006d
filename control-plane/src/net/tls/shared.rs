//! The certificate of the hub, which the platform API serves too: one per process, kept new.

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

/// How often it is looked whether it is time for another CA. What others have written or deleted is
/// seen at once.
const LOOK: Duration = Duration::from_secs(600);
/// Between two looks at least: somebody may change it back each time, as other replicas see each
/// other's writes.
const PAUSE: Duration = Duration::from_secs(1);
/// Between attempts that fail at most.
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

    /// TLS with the certificate of the moment, once there is one: the API server may be away at the
    /// start.
    ///
    /// # Errors
    /// If rustls does not support what it is asked for.
    pub(crate) async fn ready(&self) -> Result<Arc<ServerConfig>, TlsError> {
        let mut certificate = self.certificate.subscribe();
        // The sender is `self`.
        let _ = certificate.wait_for(Option::is_some).await;
        Ok(grpc(certificate)?)
    }

    /// Tells Prometheus when the certificate ends, until `shutdown`.
    pub(crate) async fn tell(&self, metrics: &Metrics, shutdown: CancellationToken) {
        let told = expiry::tell(metrics, "hub", self.certificate.subscribe());
        let _ = shutdown.run_until_cancelled(told).await;
    }

    /// Keeps the certificate and its CA new until `shutdown`.
    pub(crate) async fn keep(&self, shutdown: CancellationToken) {
        let _ = shutdown.run_until_cancelled(Box::pin(self.keep_on())).await;
    }

    async fn keep_on(&self) {
        let mut cluster = Cluster::default();
        let secrets: Api<Secret> = Api::namespaced(self.client.clone(), &self.namespace);
        let changes = watcher::watch_object(secrets, CA_SECRET).default_backoff();
        let mut changes = std::pin::pin!(changes);
        // No daemon's pod starts without it.
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.namespace);
        let published = watcher::watch_object(maps, CA_CONFIG_MAP).default_backoff();
        let mut published = std::pin::pin!(published);
        let mut failures = 0;
        loop {
            let looked = self.look(&mut cluster).await;
            if let Err(error) = looked {
                failures += 1;
                let wait = retry::delay(failures).min(LONGEST_WAIT);
                tracing::warn!(%error, ?wait, "the hub's certificate cannot be looked after, will retry");
                tokio::time::sleep(wait).await;
                continue;
            }
            failures = 0;
            tokio::time::sleep(PAUSE).await;
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                // Another replica has written it, or somebody has deleted it.
                changed = changes.next(), if self.dir.is_none() => if let Some(Err(error)) = changed {
                    tracing::debug!(%error, "the hub's authority cannot be watched");
                },
                changed = published.next(), if self.dir.is_none() => if let Some(Err(error)) = changed {
                    tracing::debug!(%error, "what daemons are told of the hub's authority cannot be watched");
                },
            }
        }
    }

    async fn look(&self, cluster: &mut Cluster) -> Result<(), TlsError> {
        let certificate = match &self.dir {
            Some(_) if self.certificate.borrow().is_some() => None,
            Some(dir) => Some(from_dir(dir)?),
            None => {
                namespace::ensure(&self.client, &self.namespace)
                    .await
                    .map_err(Box::new)?;
                cluster
                    .look(&self.client, &self.namespace, Timestamp::now())
                    .await?
            }
        };
        if certificate.is_some() {
            self.certificate.send_replace(certificate);
        }
        Ok(())
    }
}
