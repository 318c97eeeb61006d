//! Leadership: one replica acts, and its epoch fences former leaders.
//!
//! Promises: wall clocks do not matter. A Lease has expired if a replica has seen it unchanged for
//! long enough (`candidate`). A renewal counts from the time at which it was sent (`guard`). Both
//! are measured by the replica's own monotonic clock.

mod candidate;
mod epoch;
mod expiry;
mod guard;
mod held;
mod leader_address;
mod process;
#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use lockstep_core::restart::Epoch;
use serde_json::json;
use thiserror::Error;
use tokio_util::sync::CancellationToken;

use crate::config::settings::LeaderElection;
use crate::k8s::apply::is_status;
use crate::k8s::namespace;

use epoch::{floor, new_epoch, raise};
use expiry::{time_to_renew, unrenewed};
use held::Held;
pub use leader_address::LeaderAddress;
pub(crate) use leader_address::follow;
pub use process::{Identity, NoName};

/// The field manager of the epoch.
const FIELD_MANAGER: &str = "lockstep-control-plane";

/// How often a waiting replica reads the lease.
const LOOK: Duration = Duration::from_millis(500);

/// How often a write of the Lease is retried after a conflict.
const RACES: u32 = 10;

/// Annotation of the Lease: the leading process. Without election the last process to write it
/// wins.
const LEADER_PROCESS: &str = "lockstep.dev/leader-process";

/// Why leadership could not be acquired or kept.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// The API server refused a request.
    #[error("lease: {0}")]
    Api(#[from] Box<kube::Error>),
    /// The lease has no usable resourceVersion.
    #[error("lease: resourceVersion {0:?} is not a number")]
    Version(Option<String>),
    /// Another replica holds it now, or it could not be renewed in time.
    #[error("the lease was lost")]
    Lost,
    /// The API server shows an older Lease than it did.
    #[error(transparent)]
    WentBack(#[from] WentBack),
    /// The API server did not answer in time while the lease was given up.
    #[error("the lease could not be given up in time")]
    NotReleased,
}

/// The API server shows an older Lease than before. Its store was restored from a backup, and
/// anything that is cached may no longer exist.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error(
    "the API server went back to an older state: the lease was at resourceVersion {before}, and is at {now}; starting again from what it holds"
)]
pub struct WentBack {
    /// The highest version that was read.
    pub before: u64,
    /// The version that was read after that.
    pub now: u64,
}

/// The right to act as leader.
pub struct Leadership {
    /// The epoch: the Lease's resourceVersion after the acquisition. It is higher than that of
    /// every former leader.
    pub epoch: Epoch,
    name: String,
    leases: Api<Lease>,
    held: Option<Held>,
}

impl Leadership {
    /// Waits until this replica leads. Returns `None` if the shutdown came first, and the lease was
    /// given up.
    ///
    /// A control plane that follows a killed one in the same pod, or on the same host, does not
    /// wait for the lease to expire. `hub` is the address at which node daemons reach this replica.
    ///
    /// # Errors
    /// [`LeaseError`] if the API server refuses.
    pub async fn acquire(
        client: &kube::Client,
        election: &LeaderElection,
        own: &Identity,
        hub: Option<SocketAddr>,
        shutdown: &CancellationToken,
    ) -> Result<Option<Self>, LeaseError> {
        let Some(held) = Box::pin(Held::campaign(client, election, own, shutdown)).await? else {
            return Ok(None);
        };
        let claim = (held.process.as_str(), hub);
        let params = PatchParams::default();
        let begun = tokio::select! {
            // After a stall the lease may have expired, so an answer must not start the leadership.
            biased;
            () = unrenewed(held.renewed.clone(), time_to_renew(election)) => Err(LeaseError::Lost),
            () = shutdown.cancelled() => Ok(None),
            epoch = new_epoch(&held.leases, &election.lease, claim, &params, Patch::Merge) => epoch.map(Some),
        };
        let Ok(Some(epoch)) = begun else {
            // This way another replica does not wait for the lease to expire.
            let released = held.release().await;
            return begun.and(released).map(|()| None);
        };
        tracing::info!(epoch = epoch.0, identity = held.identity, "leading");
        Ok(Some(Self {
            epoch,
            name: election.lease.clone(),
            leases: held.leases.clone(),
            held: Some(held),
        }))
    }

    /// Leads at once, even if another process holds the lease: the operator ensures that no other
    /// replica acts. The Lease is still written, because the epoch comes from it, but its holder
    /// stays.
    ///
    /// # Errors
    /// [`LeaseError`] if the API server refuses.
    pub async fn without_election(
        client: &kube::Client,
        election: &LeaderElection,
        own: &Identity,
        hub: Option<SocketAddr>,
    ) -> Result<Self, LeaseError> {
        let LeaderElection { lease, namespace, .. } = election;
        let leases = leases(client, namespace).await?;
        let params = PatchParams::apply(FIELD_MANAGER).force();
        let epoch = new_epoch(&leases, lease, (&own.process(), hub), &params, Patch::Apply).await?;
        tracing::info!(
            epoch = epoch.0,
            identity = own.holder(),
            "leading without election"
        );
        Ok(Self {
            epoch,
            name: lease.clone(),
            leases,
            held: None,
        })
    }

    /// Resolves when the lease is lost, or when it was last seen as ours so long ago that another
    /// replica may soon hold it. Never resolves without election. Cancel-safe.
    pub async fn lost(&mut self) -> LeaseError {
        match &mut self.held {
            Some(held) => held.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Makes the next leader, most likely this replica, lead above an epoch that nodes have seen.
    ///
    /// # Errors
    /// [`LeaseError::Lost`] if another replica leads now, whose epoch it is. Any other error comes
    /// from the API server.
    pub async fn reserve_epoch(&self, epoch: Epoch) -> Result<(), LeaseError> {
        retry_on_conflict(|| async {
            let lease = self.leases.get(&self.name).await.map_err(Box::new)?;
            if self.held.as_ref().is_some_and(|held| !held.is_ours(&lease)) {
                return Err(LeaseError::Lost);
            }
            if floor(&lease).is_none_or(|known| known < epoch) {
                raise(&self.leases, &lease, epoch).await?;
            }
            Ok(())
        })
        .await
    }

    /// Gives the lease up, so that another replica does not wait for it to expire. A lease that
    /// another replica holds is left unchanged.
    ///
    /// # Errors
    /// [`LeaseError`] if the API server refuses, or does not answer in time.
    pub async fn release(self) -> Result<(), LeaseError> {
        match self.held {
            Some(held) => held.release().await,
            None => Ok(()),
        }
    }
}

/// The Leases of a namespace, which is created if it is missing.
async fn leases(client: &kube::Client, namespace: &str) -> Result<Api<Lease>, LeaseError> {
    namespace::ensure(client, namespace).await.map_err(Box::new)?;
    Ok(Api::namespaced(client.clone(), namespace))
}

/// Removes the holder from exactly this version of the Lease.
async fn set_free(leases: &Api<Lease>, lease: &Lease) -> Result<(), kube::Error> {
    let name = lease.metadata.name.as_deref().unwrap_or_default();
    let patch = json!({
        "metadata": {"resourceVersion": lease.metadata.resource_version},
        "spec": {"acquireTime": null, "renewTime": null, "holderIdentity": null, "leaseDurationSeconds": null},
    });
    leases
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await?;
    Ok(())
}

/// Repeats `act` if another client, most likely the manager that renews the Lease, wrote it in
/// between.
async fn retry_on_conflict<T, F>(act: impl Fn() -> F) -> Result<T, LeaseError>
where
    F: Future<Output = Result<T, LeaseError>>,
{
    for _ in 0..RACES {
        match act().await {
            Err(LeaseError::Api(error)) if is_status(&error, 409) => {}
            done => return done,
        }
    }
    act().await
}

fn leader_process(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(LEADER_PROCESS).map(String::as_str)
}

/// The holder of the Lease, if there is one. As in client-go, an empty name is none.
fn holder(lease: &Lease) -> Option<&str> {
    let holder = lease.spec.as_ref()?.holder_identity.as_deref();
    holder.filter(|holder| !holder.is_empty())
}
