//! Tells when a leader no longer leads.
//!
//! Promises: by its own monotonic clock, a leader stops before another replica may take the lease,
//! even if the API server is away, if the lease is gone or another's, or if renewals have stopped.
//! It also stops if the API server goes back to an older state.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{LeaseError, WentBack, holder, leader_process};
use crate::config::settings::LeaderElection;
use crate::k8s::watch::cache_entry::version;

/// How long a leader acts without a renewal: for its renew deadline, but at least until halfway
/// between the due renewal and the expiry of the lease.
pub(super) fn time_to_renew(election: &LeaderElection) -> Duration {
    election
        .renew_deadline
        .max((election.duration + election.retry) / 2)
}

/// Resolves when the lease has not been renewed for this long. Reading it is not enough: other
/// replicas see an unchanged lease, and take it.
pub(super) async fn unrenewed(mut renewed: watch::Receiver<Instant>, limit: Duration) {
    loop {
        let until = *renewed.borrow_and_update() + limit;
        match tokio::time::timeout_at(until, renewed.changed()).await {
            Ok(Ok(())) => {}
            // The task that renews it is gone.
            Ok(Err(_)) | Err(_) => return tokio::time::sleep_until(until).await,
        }
    }
}

/// The highest resourceVersion of the lease that was read.
///
/// Each read is answered from etcd, sees all earlier writes, and begins after the answer to the one
/// before. No cache and no other API server can show an older version, unless the store has gone
/// back.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct HighestVersion(u64);

impl HighestVersion {
    /// Records a version that was read. One that is not a number is ignored.
    ///
    /// # Errors
    /// The version is older.
    pub(super) fn see(&mut self, lease: &Lease) -> Result<(), WentBack> {
        let now = version(&lease.metadata);
        if (1..self.0).contains(&now) {
            return Err(WentBack { before: self.0, now });
        }
        self.0 = now;
        Ok(())
    }
}

/// Resolves when the lease's manager has read a lower version than before. Cancel-safe.
pub(super) async fn fallen(mut went_back: watch::Receiver<Option<WentBack>>) -> WentBack {
    let fallen = went_back
        .wait_for(Option::is_some)
        .await
        .ok()
        .and_then(|fallen| *fallen);
    match fallen {
        Some(fallen) => fallen,
        // The manager has ended: `held` shows that.
        None => std::future::pending().await,
    }
}

/// Resolves when the lease was not seen as ours for the renew deadline, which is shorter than the
/// lease. The manager renews the lease, but reports nothing while the API server is away.
///
/// It also resolves when the lease's resourceVersion has fallen.
pub(super) async fn unseen(
    leases: &Api<Lease>,
    election: &LeaderElection,
    (identity, process): (&str, &str),
    highest: &mut HighestVersion,
) -> LeaseError {
    let deadline = election.renew_deadline;
    // A read that fails or is slow must leave time for others.
    let (every, timeout) = (election.retry.min(deadline / 4), deadline / 3);
    let mut seen = Instant::now();
    loop {
        let left = |seen: Instant| deadline.saturating_sub(seen.elapsed());
        if left(seen).is_zero() {
            return LeaseError::Lost;
        }
        tokio::time::sleep(every.min(left(seen))).await;
        let asked = Instant::now();
        match tokio::time::timeout(timeout.min(left(seen)), leases.get_opt(&election.lease)).await {
            Ok(Ok(Some(lease))) => {
                if let Err(fallen) = highest.see(&lease) {
                    return fallen.into();
                }
                if holder(&lease) != Some(identity) || leader_process(&lease) != Some(process) {
                    tracing::error!(holder = holder(&lease), "another replica holds the lease");
                    return LeaseError::Lost;
                }
                seen = asked;
            }
            // It cannot be renewed, and the next replica creates another.
            Ok(Ok(None)) => {
                tracing::error!("the lease is gone");
                return LeaseError::Lost;
            }
            Ok(Err(error)) => tracing::warn!(%error, "lease not read"),
            Err(_) => tracing::warn!("lease not read in time"),
        }
    }
}
