//! Leadership: one replica acts, and its epoch fences the ones before it.

mod process;
#[cfg(test)]
mod tests;
mod whereabouts;

use std::net::SocketAddr;
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, Patch, PatchParams};
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use lockstep_core::restart::Epoch;
use serde_json::json;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::apply::is_status;
use crate::namespace;
use crate::settings::LeaderElection;

pub use process::{Identity, Nameless};
use whereabouts::HUB_ADDRESS;
pub use whereabouts::Whereabouts;
pub(crate) use whereabouts::follow;

/// Who writes the epoch.
const FIELD_MANAGER: &str = "lockstep-control-plane";

/// How often a replica that waits looks whether the lease was given up. The manager sleeps until the lease would have ended.
const LOOK: Duration = Duration::from_secs(1);

/// How often others may write the Lease between two writes that belong together, before it is given up.
const RACES: u32 = 10;

/// Annotation of the Lease: the process that leads. The latest to write it wins, where somebody leads without election.
const LEADER_PROCESS: &str = "lockstep.dev/leader-process";

/// Annotation of the Lease: the highest epoch that anybody is known to have acted under. There only where the store was restored from a backup,
/// so that its versions, from which epochs are taken, begin below those that nodes have seen.
const EPOCH: &str = "lockstep.dev/epoch";

/// Why leadership could not be had or kept.
#[derive(Debug, Error)]
pub enum LeaseError {
    /// The lease manager failed.
    #[error("lease: {0}")]
    Manager(#[from] LeaseManagerError),
    /// The API server refused.
    #[error("lease: {0}")]
    Api(#[from] Box<kube::Error>),
    /// The lease has no usable resourceVersion.
    #[error("lease: resourceVersion {0:?} is not a number")]
    Version(Option<String>),
    /// Another replica holds it now, or it could not be renewed in time.
    #[error("the lease was lost")]
    Lost,
}

/// The right to act.
pub struct Leadership {
    /// The epoch: the Lease's resourceVersion after the acquisition, higher than that of every leader before.
    pub epoch: Epoch,
    name: String,
    leases: Api<Lease>,
    held: Option<Held>,
}

/// A lease that is held, and renewed in a task of its own.
struct Held {
    held: watch::Receiver<bool>,
    leases: Api<Lease>,
    election: LeaderElection,
    identity: String,
    process: String,
    task: JoinHandle<Result<LeaseManager, LeaseManagerError>>,
}

impl Leadership {
    /// Waits until this replica leads.
    ///
    /// A control plane that follows one that was killed in the same pod, or on the same host, need not wait for the lease's end. `hub` is where
    /// node daemons find this replica.
    ///
    /// # Errors
    /// [`LeaseError`] where the API server refuses.
    pub async fn acquire(
        client: &kube::Client,
        election: &LeaderElection,
        own: &Identity,
        hub: Option<SocketAddr>,
    ) -> Result<Self, LeaseError> {
        let LeaderElection { lease, namespace, .. } = election;
        let leases = leases(client, namespace).await?;
        let (identity, process) = (own.holder(), own.process());
        unless_raced(|| bury(&leases, lease, own)).await?;
        let mut told = false;
        let (held, task) = loop {
            let manager = LeaseManagerBuilder::new(client.clone(), lease)
                .with_namespace(namespace)
                .with_identity(&identity)
                .with_duration(election.duration.as_secs())
                // Tried as early as client-go tries, so that one attempt may fail, or take its time.
                .with_grace(election.duration.saturating_sub(election.retry).as_secs())
                .build()
                .await?;
            let (mut held, task) = manager.watch().await;
            if !std::mem::replace(&mut told, true) {
                tracing::info!(lease, namespace, identity, "waiting for leadership");
            }
            let leads = tokio::select! {
                leads = held.wait_for(|held| *held) => Some(leads.is_ok()),
                () = given_up(&leases, lease) => None,
            };
            match leads {
                Some(true) => break (held, task),
                Some(false) => return Err(LeaseError::Lost),
                // The next manager looks at the lease anew. This one ends, since nobody listens to it, and leaves the lease free.
                None => {
                    drop(held);
                    let _ = task.await;
                }
            }
        };
        let epoch = new_epoch(
            &leases,
            lease,
            (&process, hub),
            &PatchParams::default(),
            Patch::Merge,
        )
        .await?;
        tracing::info!(epoch = epoch.0, identity, "leading");
        Ok(Self {
            epoch,
            name: lease.clone(),
            leases: leases.clone(),
            held: Some(Held {
                held,
                leases,
                election: election.clone(),
                identity,
                process,
                task,
            }),
        })
    }

    /// Leads at once, whoever holds the lease: somebody else sees to it that no other replica acts. The Lease is written all the same, since
    /// the epoch comes from it; who holds it is left as it is.
    ///
    /// # Errors
    /// [`LeaseError`] where the API server refuses.
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

    /// Resolves when the lease is lost, or could not be seen to be ours for so long that another replica may hold it soon. Never without
    /// election. Cancel-safe.
    pub async fn lost(&mut self) -> LeaseError {
        match &mut self.held {
            Some(held) => held.lost().await,
            None => std::future::pending().await,
        }
    }

    /// Sees to it that the next to lead, most likely this replica, does so above an epoch that others have heard of.
    ///
    /// # Errors
    /// [`LeaseError::Lost`] where that epoch is simply that of the present leader, which is another replica; else where the API server refuses.
    pub async fn outlive(&self, epoch: Epoch) -> Result<(), LeaseError> {
        unless_raced(|| async {
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

    /// Gives the lease up, so that another replica need not wait for its end.
    ///
    /// # Errors
    /// [`LeaseError`] where the API server refuses.
    pub async fn release(self) -> Result<(), LeaseError> {
        let Some(Held { held, task, .. }) = self.held else {
            return Ok(());
        };
        drop(held);
        if let Ok(manager) = task.await {
            manager?.release().await?;
        }
        Ok(())
    }
}

impl Held {
    fn is_ours(&self, lease: &Lease) -> bool {
        holder(lease) == Some(&self.identity) && leader_process(lease) == Some(&self.process)
    }

    async fn lost(&mut self) -> LeaseError {
        tokio::select! {
            // An ended sender means that the renewing task is gone: as good as lost.
            _ = self.held.wait_for(|held| !*held) => {}
            () = unseen(&self.leases, &self.election, (&self.identity, &self.process)) => {}
        }
        LeaseError::Lost
    }
}

/// The Leases of a namespace, which is made where it is missing.
async fn leases(client: &kube::Client, namespace: &str) -> Result<Api<Lease>, LeaseError> {
    namespace::ensure(client, namespace).await.map_err(Box::new)?;
    Ok(Api::namespaced(client.clone(), namespace))
}

/// Frees the lease where the process has ended that holds it, and this one follows it.
async fn bury(leases: &Api<Lease>, name: &str, own: &Identity) -> Result<(), LeaseError> {
    let present = leases.get_opt(name).await.map_err(Box::new)?;
    let Some(lease) = present.filter(|lease| own.follows(lease)) else {
        return Ok(());
    };
    tracing::info!(former = holder(&lease), "the process that led has ended");
    let patch = json!({
        "metadata": {"resourceVersion": lease.metadata.resource_version},
        "spec": {"acquireTime": null, "renewTime": null, "holderIdentity": null, "leaseDurationSeconds": null},
    });
    leases
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map_err(Box::new)?;
    Ok(())
}

/// Writes the Lease, so that its resourceVersion is higher than that of every leader before. After a restore that is not enough: then the epoch
/// is one above the last, and is written down.
async fn new_epoch<P>(
    leases: &Api<Lease>,
    name: &str,
    (process, hub): (&str, Option<SocketAddr>),
    params: &PatchParams,
    patch: P,
) -> Result<Epoch, LeaseError>
where
    P: Fn(serde_json::Value) -> Patch<serde_json::Value>,
{
    let hub = hub.map(|address| address.to_string()).unwrap_or_default();
    let claim = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": name, "annotations": {LEADER_PROCESS: process, HUB_ADDRESS: hub}},
    });
    unless_raced(|| async {
        let lease = leases
            .patch(name, params, &patch(claim.clone()))
            .await
            .map_err(Box::new)?;
        let version = lease.metadata.resource_version.as_deref();
        let Some(epoch) = version.and_then(|text| text.parse().ok()).map(Epoch) else {
            return Err(LeaseError::Version(lease.metadata.resource_version));
        };
        let Some(floor) = floor(&lease).filter(|floor| *floor >= epoch) else {
            return Ok(epoch);
        };
        let above = Epoch(floor.0.saturating_add(1));
        raise(leases, &lease, above).await?;
        Ok(above)
    })
    .await
}

/// Does it again where somebody else, most likely the manager that renews it, has written the Lease in between.
async fn unless_raced<T, F>(act: impl Fn() -> F) -> Result<T, LeaseError>
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

/// Writes an epoch down, on top of exactly this version of the Lease.
async fn raise(leases: &Api<Lease>, on: &Lease, epoch: Epoch) -> Result<(), LeaseError> {
    let name = on.metadata.name.as_deref().unwrap_or_default();
    let patch = json!({"metadata": {
        "resourceVersion": on.metadata.resource_version,
        "annotations": {EPOCH: epoch.0.to_string()},
    }});
    leases
        .patch(name, &PatchParams::default(), &Patch::Merge(patch))
        .await
        .map_err(Box::new)?;
    tracing::warn!(epoch = epoch.0, "epochs go on above one that was used before");
    Ok(())
}

fn floor(lease: &Lease) -> Option<Epoch> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(EPOCH)?.parse().ok().map(Epoch)
}

/// Resolves once nobody holds the lease.
async fn given_up(leases: &Api<Lease>, name: &str) {
    loop {
        tokio::time::sleep(LOOK).await;
        match tokio::time::timeout(LOOK, leases.get_opt(name)).await {
            Ok(Ok(lease)) if lease.as_ref().and_then(holder).is_none_or(str::is_empty) => return,
            // Held; or unknown, as the manager will find out too.
            _ => {}
        }
    }
}

/// Resolves once the lease has not been seen to be ours for the time that a leader has to renew it, which is over before the lease is. The manager
/// renews it, but says nothing while the API server is away.
async fn unseen(leases: &Api<Lease>, election: &LeaderElection, (identity, process): (&str, &str)) {
    let deadline = election.renew_deadline;
    // One look that fails, or takes its time, leaves time for others.
    let (every, patience) = (election.retry.min(deadline / 4), deadline / 3);
    let mut seen = Instant::now();
    loop {
        let left = |seen: Instant| deadline.saturating_sub(seen.elapsed());
        if left(seen).is_zero() {
            return;
        }
        tokio::time::sleep(every.min(left(seen))).await;
        let asked = Instant::now();
        match tokio::time::timeout(patience.min(left(seen)), leases.get(&election.lease)).await {
            Ok(Ok(lease)) if holder(&lease) == Some(identity) && leader_process(&lease) == Some(process) => {
                seen = asked;
            }
            Ok(Ok(lease)) => {
                tracing::error!(holder = holder(&lease), "another replica holds the lease");
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "the lease cannot be read"),
            Err(_) => tracing::warn!("the lease cannot be read in time"),
        }
    }
}

fn leader_process(lease: &Lease) -> Option<&str> {
    let annotations = lease.metadata.annotations.as_ref()?;
    annotations.get(LEADER_PROCESS).map(String::as_str)
}

fn holder(lease: &Lease) -> Option<&str> {
    lease.spec.as_ref()?.holder_identity.as_deref()
}
