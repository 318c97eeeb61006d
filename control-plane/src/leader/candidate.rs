//! Decides when a replica may take the Lease: by what it has seen itself, and for how long by its
//! own monotonic clock.
//!
//! Promises: a Lease that is renewed stays with its holder, regardless of the times in it. A Lease
//! that is not renewed expires when it was seen unchanged for its own duration. No write replaces a
//! renewal that came in between. If this replica saw a Lease held and then deleted, the Lease still
//! lasts for its duration, because its holder may not know of the deletion. A replica that starts
//! later finds no Lease, and takes it. No replica takes a Lease if the API server goes back to an
//! older state, because its caches may hold what no longer exists.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::Api;
use tokio::time::Instant;

use super::expiry::HighestVersion;
use super::{LOOK, LeaseError, holder, set_free};
use crate::config::settings::LeaderElection;
use crate::k8s::apply::is_status;

/// A waiting replica, and its view of the Lease.
#[derive(Debug)]
pub(super) struct Candidate {
    leases: Api<Lease>,
    election: LeaderElection,
    identity: String,
    seen: Option<LastSeen>,
    pub(super) highest: HighestVersion,
}

/// The Lease of another holder as it was last seen, and since when it is unchanged. Its annotations
/// do not count, because a renewal changes the times.
#[derive(Debug)]
struct LastSeen {
    spec: LeaseSpec,
    presence: Presence,
    since: Instant,
}

/// Tells if a Lease that was held still exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    There,
    Deleted,
}

/// The state of a Lease for a replica that wants to lead.
#[derive(Debug, PartialEq, Eq)]
enum LeaseState {
    /// Without a holder, or missing and never seen with one.
    Free,
    /// It still names a holder but has expired, or it names this replica, which has given it up.
    Over,
    /// Held by another replica, until this time unless it is renewed.
    Held(Instant),
}

impl Candidate {
    pub(super) fn new(leases: Api<Lease>, election: &LeaderElection, identity: &str) -> Self {
        Self {
            leases,
            election: election.clone(),
            identity: identity.to_owned(),
            seen: None,
            highest: HighestVersion::default(),
        }
    }

    /// Resolves when the lease can be taken at once. An expired one is freed first.
    ///
    /// # Errors
    /// [`LeaseError::WentBack`].
    pub(super) async fn until_free(&mut self) -> Result<(), LeaseError> {
        loop {
            let next = match self.read_lease().await? {
                Some((LeaseState::Free, _)) => return Ok(()),
                Some((LeaseState::Over, Some(lease))) if self.freed(&lease).await => return Ok(()),
                Some((LeaseState::Held(until), _)) => until.min(Instant::now() + LOOK),
                _ => Instant::now() + LOOK,
            };
            tokio::time::sleep_until(next).await;
        }
    }

    /// Resolves when another replica holds the lease, when it is gone, or when it has been free for
    /// long.
    ///
    /// # Errors
    /// [`LeaseError::WentBack`].
    pub(super) async fn until_held(&mut self) -> Result<(), LeaseError> {
        let began = Instant::now();
        while began.elapsed() < self.election.duration {
            tokio::time::sleep(LOOK).await;
            // Without a Lease the manager has nothing to acquire.
            if let Some((LeaseState::Held(_), _) | (_, None)) = self.read_lease().await? {
                break;
            }
        }
        Ok(())
    }

    /// Reads the lease and judges it. Returns `None` if it cannot be read.
    async fn read_lease(&mut self) -> Result<Option<(LeaseState, Option<Lease>)>, LeaseError> {
        // A late answer only makes the lease look younger.
        let look = self.leases.get_opt(&self.election.lease);
        match tokio::time::timeout(self.election.duration, look).await {
            Ok(Ok(lease)) => {
                if let Some(lease) = &lease {
                    self.highest.see(lease)?;
                }
                return Ok(Some((self.judge(lease.as_ref()), lease)));
            }
            Ok(Err(error)) => tracing::warn!(%error, "lease not read"),
            Err(_) => tracing::warn!("lease not read in time"),
        }
        Ok(None)
    }

    fn judge(&mut self, lease: Option<&Lease>) -> LeaseState {
        let Some(lease) = lease else {
            return self.gone();
        };
        let holder = holder(lease);
        match &lease.spec {
            Some(spec) if holder.is_some_and(|holder| holder != self.identity) => {
                self.held(spec.clone(), Presence::There)
            }
            spec => {
                self.seen = None;
                // If fields of a former holder remain, the manager takes the lease for a held one.
                let is_clean = spec.as_ref().is_none_or(|spec| {
                    spec.holder_identity.is_none()
                        && spec.renew_time.is_none()
                        && spec.acquire_time.is_none()
                        && spec.lease_duration_seconds.is_none()
                });
                if is_clean {
                    LeaseState::Free
                } else {
                    LeaseState::Over
                }
            }
        }
    }

    /// The state of a missing Lease. It still lasts for the duration that was last seen. Then there
    /// is nothing to free.
    fn gone(&mut self) -> LeaseState {
        let Some(seen) = &self.seen else {
            return LeaseState::Free;
        };
        match self.held(seen.spec.clone(), Presence::Deleted) {
            LeaseState::Over => {
                self.seen = None;
                LeaseState::Free
            }
            held => held,
        }
    }

    /// The state of a Lease that another replica holds, or held when it was deleted.
    fn held(&mut self, spec: LeaseSpec, presence: Presence) -> LeaseState {
        let now = Instant::now();
        let since = match &self.seen {
            Some(seen) if seen.spec == spec && seen.presence == presence => seen.since,
            _ => now,
        };
        let lasts = spec
            .lease_duration_seconds
            .and_then(|lasts| u64::try_from(lasts).ok());
        let lasts = lasts.map_or(self.election.duration, Duration::from_secs);
        self.seen = Some(LastSeen {
            spec,
            presence,
            since,
        });
        match since + lasts {
            until if until <= now => LeaseState::Over,
            until => LeaseState::Held(until),
        }
    }

    /// Frees the lease. Returns false if that failed, or if the lease was written since it was
    /// read.
    async fn freed(&self, lease: &Lease) -> bool {
        if let Some(former) = holder(lease).filter(|holder| *holder != self.identity) {
            tracing::warn!(former, "the lease has expired without a renewal");
        }
        match set_free(&self.leases, lease).await {
            Ok(()) => true,
            Err(error) if is_status(&error, 409) => false,
            Err(error) => {
                tracing::warn!(%error, "expired lease not freed");
                false
            }
        }
    }
}
