//! Whether a leader still leads.
//!
//! Promises: it stops before another replica may take the lease, also where the API server is away, the lease is another's or gone, or nothing is
//! renewed any more: by its own monotonic clock.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{holder, leader_process};
use crate::settings::LeaderElection;

/// For how long a leader acts that does not renew the lease: the time that it has for it, but at least until halfway between a renewal that is due
/// and the lease's end.
pub(super) fn time_to_renew(election: &LeaderElection) -> Duration {
    election
        .renew_deadline
        .max((election.duration + election.retry) / 2)
}

/// Resolves once the lease was not renewed for so long. That it can be read is not enough: others see that it stays as it is, and take it.
pub(super) async fn unrenewed(mut renewed: watch::Receiver<Instant>, limit: Duration) {
    loop {
        let until = *renewed.borrow_and_update() + limit;
        match tokio::time::timeout_at(until, renewed.changed()).await {
            Ok(Ok(())) => {}
            // Nobody renews it any more.
            Ok(Err(_)) | Err(_) => return tokio::time::sleep_until(until).await,
        }
    }
}

/// Resolves once the lease has not been seen to be ours for the time that a leader has to renew it, which is over before the lease is. The manager
/// renews it, but says nothing while the API server is away.
pub(super) async fn unseen(
    leases: &Api<Lease>,
    election: &LeaderElection,
    (identity, process): (&str, &str),
) {
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
        match tokio::time::timeout(patience.min(left(seen)), leases.get_opt(&election.lease)).await {
            Ok(Ok(Some(lease)))
                if holder(&lease) == Some(identity) && leader_process(&lease) == Some(process) =>
            {
                seen = asked;
            }
            // It cannot be renewed, and whoever comes makes another.
            Ok(Ok(None)) => {
                tracing::error!("the lease is gone");
                return;
            }
            Ok(Ok(Some(lease))) => {
                tracing::error!(holder = holder(&lease), "another replica holds the lease");
                return;
            }
            Ok(Err(error)) => tracing::warn!(%error, "the lease cannot be read"),
            Err(_) => tracing::warn!("the lease cannot be read in time"),
        }
    }
}
