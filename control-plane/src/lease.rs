//! Leadership: one replica acts, and its epoch fences the ones before it.

use std::time::{Duration, Instant};

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Namespace;
use kube::api::{Api, ObjectMeta, Patch, PatchParams, PostParams};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use lockstep_core::restart::Epoch;
use serde_json::json;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Name of the Lease, in the product's namespace.
pub const LEASE: &str = "lockstep-control-plane";
/// Seconds that a lease is held without renewal.
const DURATION: u64 = 15;
/// Seconds before its end at which it is renewed.
const GRACE: u64 = 5;

/// Why leadership could not be had or kept.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// The lease manager failed.
    #[error("lease {LEASE}: {0}")]
    Manager(#[from] LeaseManagerError),
    /// The API server refused.
    #[error("lease {LEASE}: {0}")]
    Api(#[from] Box<kube::Error>),
    /// The lease has no usable resourceVersion.
    #[error("lease {LEASE}: resourceVersion {0:?} is not a number")]
    Version(Option<String>),
    /// Another replica holds it now, or it could not be renewed in time.
    #[error("lease {LEASE} was lost")]
    Lost,
}

/// A lease that is held, and renewed in a task of its own.
pub struct Leadership {
    /// The epoch: the Lease's resourceVersion after the acquisition, higher than that of every leader before.
    pub epoch: Epoch,
    held: watch::Receiver<bool>,
    leases: Api<Lease>,
    identity: String,
    task: JoinHandle<Result<LeaseManager, LeaseManagerError>>,
}

impl Leadership {
    /// Waits until this replica leads.
    ///
    /// The identity survives a restart of the process (a pod's name): a control plane that was killed takes its own lease back at once.
    ///
    /// # Errors
    /// [`LeaseError`] where the API server refuses.
    pub async fn acquire(client: kube::Client, namespace: &str, identity: &str) -> Result<Self, LeaseError> {
        ensure_namespace(&client, namespace).await?;
        let manager = LeaseManagerBuilder::new(client.clone(), LEASE)
            .with_namespace(namespace)
            .with_identity(identity)
            .with_duration(DURATION)
            .with_grace(GRACE)
            .build()
            .await?;
        let (mut held, task) = manager.watch().await;
        if !*held.borrow_and_update() {
            tracing::info!(lease = LEASE, namespace, identity, "waiting for leadership");
            held.wait_for(|held| *held).await.map_err(|_| LeaseError::Lost)?;
        }
        // A write of our own: a process that was killed and comes back under the same identity finds its lease held, and must not share the
        // epoch of its former life.
        let claim = json!({"metadata": {"annotations": {"lockstep.dev/leader-process": uuid::Uuid::new_v4().to_string()}}});
        let leases: Api<Lease> = Api::namespaced(client, namespace);
        let lease = leases
            .patch(LEASE, &PatchParams::default(), &Patch::Merge(&claim))
            .await
            .map_err(Box::new)?;
        let version = lease.metadata.resource_version;
        let epoch = version
            .as_deref()
            .and_then(|text| text.parse().ok())
            .ok_or_else(|| LeaseError::Version(version.clone()))?;
        tracing::info!(epoch, identity, "leading");
        Ok(Self {
            epoch: Epoch(epoch),
            held,
            leases,
            identity: identity.to_owned(),
            task,
        })
    }

    /// Resolves when the lease is lost, or could not be seen to be ours for as long as it lasts: then another replica may hold it. Cancel-safe.
    pub async fn lost(&mut self) -> LeaseError {
        tokio::select! {
            // An ended sender means that the renewing task is gone: as good as lost.
            _ = self.held.wait_for(|held| !*held) => {}
            () = unseen(&self.leases, &self.identity) => {}
        }
        LeaseError::Lost
    }

    /// Gives the lease up, so that another replica need not wait for its end.
    ///
    /// # Errors
    /// [`LeaseError`] where the API server refuses.
    pub async fn release(self) -> Result<(), LeaseError> {
        drop(self.held);
        if let Ok(manager) = self.task.await {
            manager?.release().await?;
        }
        Ok(())
    }
}

async fn ensure_namespace(client: &kube::Client, namespace: &str) -> Result<(), LeaseError> {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    match namespaces.get_opt(namespace).await {
        Ok(Some(_)) => return Ok(()),
        // In a cluster the namespace is there, and reading it may not be allowed.
        Err(kube::Error::Api(status)) if status.code == 403 => return Ok(()),
        Ok(None) => {}
        Err(error) => return Err(LeaseError::Api(Box::new(error))),
    }
    let object = Namespace {
        metadata: ObjectMeta {
            name: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        },
        ..Namespace::default()
    };
    match namespaces.create(&PostParams::default(), &object).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        Err(error) => Err(LeaseError::Api(Box::new(error))),
    }
}

/// Resolves once the lease has not been seen to be ours for its whole duration. The manager renews it, but says nothing while the API server is
/// away.
async fn unseen(leases: &Api<Lease>, identity: &str) {
    let (duration, every) = (Duration::from_secs(DURATION), Duration::from_secs(GRACE));
    let mut seen = Instant::now();
    while seen.elapsed() < duration {
        tokio::time::sleep(every).await;
        let asked = Instant::now();
        match tokio::time::timeout(every, leases.get(LEASE)).await {
            Ok(Ok(lease)) if holder(&lease) == Some(identity) => seen = asked,
            Ok(Ok(lease)) => {
                tracing::error!(holder = holder(&lease), "another replica holds the lease");
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "the lease cannot be read"),
            Err(_) => tracing::warn!("the lease cannot be read in time"),
        }
    }
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}
