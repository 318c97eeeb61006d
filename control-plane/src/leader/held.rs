//! A Lease that this process holds: how it is taken, kept, and given up.

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

/// How long it may take to give the Lease up: hardly longer than the next leader would else wait for its end.
pub(super) const GIVE_UP: Duration = Duration::from_secs(10);

/// A lease that is held, and renewed in a task of its own.
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

/// A manager at work. It ends with this, wherever it is.
type Managing = AbortOnDropHandle<Result<LeaseManager, LeaseManagerError>>;

impl Held {
    /// Waits until the lease is this process's; nothing where it is told to end before. Cancelled in another way it might keep the lease.
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
                        // Who waits has time.
                        Err(error) => {
                            tracing::warn!(lease, %error, "the lease cannot be waited for now, will retry");
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
                // Another was quicker, and the manager would wait for the end of the lease by the wall clock.
                stands = candidate.until_held() => {
                    let released = held.release().await;
                    stands?;
                    if let Err(error) = released {
                        // Had it taken the lease after all, that is seen next.
                        tracing::warn!(%error, "the lease cannot be given up now");
                    }
                }
                () = shutdown.cancelled() => {
                    // What the API server was asked for may be done after a look at the lease. So it may first answer.
                    let _ = tokio::time::timeout(LOOK, held.held.wait_for(|held| *held)).await;
                    return held.release().await.map(|()| None);
                }
            }
        }
    }

    pub(super) async fn release(self) -> Result<(), LeaseError> {
        // By itself it would give up whatever it finds, and first sleep for up to half a minute where a renewal has failed.
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
            // An ended sender means that the renewing task is gone: as good as lost.
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

/// Who takes the lease, and renews it.
async fn manager(
    client: &kube::Client,
    election: &LeaderElection,
    identity: &str,
) -> Result<LeaseManager, LeaseManagerError> {
    LeaseManagerBuilder::new(client.clone(), &election.lease)
        .with_namespace(&election.namespace)
        .with_identity(identity)
        .with_duration(election.duration.as_secs())
        // Tried as early as client-go tries, so that one attempt may fail, or take its time.
        .with_grace(election.duration.saturating_sub(election.retry).as_secs())
        .build()
        .await
}

/// Ends a manager wherever it is: it writes nothing any more.
async fn end(manager: Managing) {
    manager.abort();
    // It was cancelled, which is no news.
    let _ = manager.await;
}

/// Frees the lease where the process has ended that holds it, and this one follows it.
async fn free_predecessor(leases: &Api<Lease>, name: &str, own: &Identity) -> Result<(), LeaseError> {
    let present = leases.get_opt(name).await.map_err(Box::new)?;
    let Some(lease) = present.filter(|lease| own.follows(lease)) else {
        return Ok(());
    };
    tracing::info!(former = holder(&lease), "the process that led has ended");
    set_free(leases, &lease).await.map_err(Box::new)?;
    Ok(())
}
