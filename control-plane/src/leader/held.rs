//! A Lease that this process holds: how it is acquired, kept, and given up.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube_lease_manager::{LeaseManager, LeaseManagerBuilder, LeaseManagerError};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::candidate::Candidate;
use super::expiry::{HighestVersion, fallen, time_to_renew, unrenewed, unseen};
use super::guard;
use super::process::Identity;
use super::{LOOK, LeaseError, WentBack, holder, leader_process, leases, retry_on_conflict, set_free};
use crate::config::settings::LeaderElection;

/// How long giving the Lease up may take. Without it, the next leader waits about as long for the
/// expiry.
pub(super) const GIVE_UP: Duration = Duration::from_secs(10);

/// A lease that this process holds. A separate task renews it.
pub(super) struct Held {
    held: watch::Receiver<bool>,
    /// When it was last renewed.
    pub(super) renewed: watch::Receiver<Instant>,
    went_back: watch::Receiver<Option<WentBack>>,
    pub(super) leases: Api<Lease>,
    election: LeaderElection,
    pub(super) identity: String,
    pub(super) process: String,
    manager: Managing,
    highest: HighestVersion,
}

/// A running manager, which ends when this is dropped.
type Managing = AbortOnDropHandle<Result<LeaseManager, LeaseManagerError>>;

impl Held {
    /// Waits until this process holds the lease. Returns `None` if the shutdown came first. If the
    /// future is dropped instead, the process may keep the lease.
    pub(super) async fn campaign(
        client: &kube::Client,
        election: &LeaderElection,
        own: &Identity,
        shutdown: &CancellationToken,
    ) -> Result<Option<Self>, LeaseError> {
        let LeaderElection { lease, namespace, .. } = election;
        let (identity, process) = (own.holder(), own.process());
        let prepared = async {
            let leases = leases(client, namespace).await?;
            retry_on_conflict(|| free_predecessor(&leases, lease, own)).await?;
            Ok::<_, LeaseError>(leases)
        };
        let Some(leases) = shutdown.run_until_cancelled(prepared).await.transpose()? else {
            return Ok(None);
        };
        let (manager_client, seen) = guard::guarded(client, election, &identity);
        let mut candidate = Candidate::new(leases.clone(), election, &identity);
        tracing::info!(lease, namespace, identity, "waiting for leadership");
        loop {
            let manager = async {
                loop {
                    candidate.until_free().await?;
                    match manager(&manager_client, election, &identity).await {
                        Ok(manager) => return Ok::<_, LeaseError>(manager),
                        // A waiting replica can take its time.
                        Err(error) => {
                            tracing::warn!(lease, %error, "lease manager not started, will retry");
                            tokio::time::sleep(election.retry).await;
                        }
                    }
                }
            };
            let Some(manager) = shutdown.run_until_cancelled(manager).await.transpose()? else {
                return Ok(None);
            };
            let (mut leads, task) = manager.watch().await;
            let mut held = Self {
                held: leads.clone(),
                renewed: seen.renewed.clone(),
                went_back: seen.went_back.clone(),
                leases: leases.clone(),
                election: election.clone(),
                identity: identity.clone(),
                process: process.clone(),
                manager: AbortOnDropHandle::new(task),
                highest: candidate.highest,
            };
            tokio::select! {
                leads = async { leads.wait_for(|held| *held).await.is_ok() } => {
                    held.highest = candidate.highest;
                    return if leads { Ok(Some(held)) } else { Err(LeaseError::Lost) };
                }
                fallen = fallen(seen.went_back.clone()) => return Err(fallen.into()),
                // Another replica was faster, and the manager would wait for the expiry by the wall
                // clock.
                stands = candidate.until_held() => {
                    let released = held.release().await;
                    stands?;
                    if let Err(error) = released {
                        // If the manager has acquired the lease after all, the next read shows
                        // that.
                        tracing::warn!(%error, "lease not given up");
                    }
                }
                () = shutdown.cancelled() => {
                    // A pending request may take effect after the lease is read, so wait for its
                    // answer first.
                    let _ = tokio::time::timeout(LOOK, held.held.wait_for(|held| *held)).await;
                    return held.release().await.map(|()| None);
                }
            }
        }
    }

    pub(super) async fn release(self) -> Result<(), LeaseError> {
        // The manager itself would release any lease that it finds, and would first sleep for up to
        // half a minute after a failed renewal.
        end(self.manager).await;
        let freed = retry_on_conflict(|| async {
            let lease = self
                .leases
                .get_opt(&self.election.lease)
                .await
                .map_err(Box::new)?;
            if let Some(lease) = lease.filter(|lease| holder(lease) == Some(&self.identity)) {
                set_free(&self.leases, &lease).await.map_err(Box::new)?;
            }
            Ok(())
        });
        let freed = tokio::time::timeout(GIVE_UP, freed).await;
        freed.unwrap_or(Err(LeaseError::NotReleased))
    }

    pub(super) fn is_ours(&self, lease: &Lease) -> bool {
        holder(lease) == Some(&self.identity) && leader_process(lease) == Some(&self.process)
    }

    pub(super) async fn lost(&mut self) -> LeaseError {
        tokio::select! {
            // If the sender is gone, so is the task that renews, and the lease will be lost.
            _ = self.held.wait_for(|held| !*held) => {}
            why = unseen(&self.leases, &self.election, (&self.identity, &self.process), &mut self.highest) => return why,
            fallen = fallen(self.went_back.clone()) => return fallen.into(),
            () = unrenewed(self.renewed.clone(), time_to_renew(&self.election)) => {
                tracing::error!("the lease was not renewed in time");
            }
        }
        LeaseError::Lost
    }
}

/// The manager that acquires the lease, and renews it.
async fn manager(
    client: &kube::Client,
    election: &LeaderElection,
    identity: &str,
) -> Result<LeaseManager, LeaseManagerError> {
    LeaseManagerBuilder::new(client.clone(), &election.lease)
        .with_namespace(&election.namespace)
        .with_identity(identity)
        .with_duration(election.duration.as_secs())
        // It tries as early as client-go does, so that one attempt may fail or be slow.
        .with_grace(election.duration.saturating_sub(election.retry).as_secs())
        .build()
        .await
}

/// Ends a manager: it writes nothing after this.
async fn end(manager: Managing) {
    manager.abort();
    // It was cancelled, so its result means nothing.
    let _ = manager.await;
}

/// Frees the lease if its holder has ended and this process follows it in the same pod or on the
/// same host.
async fn free_predecessor(leases: &Api<Lease>, name: &str, own: &Identity) -> Result<(), LeaseError> {
    let present = leases.get_opt(name).await.map_err(Box::new)?;
    let Some(lease) = present.filter(|lease| own.follows(lease)) else {
        return Ok(());
    };
    tracing::info!(former = holder(&lease), "the former leader's process has ended");
    set_free(leases, &lease).await.map_err(Box::new)?;
    Ok(())
}
