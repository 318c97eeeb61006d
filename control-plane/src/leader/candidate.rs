//! When a replica may stand for election: judged by what it saw itself, for how long, by its own monotonic clock.
//!
//! Promises: a Lease that is renewed is left to its holder, whatever times are written in it; one that is not is over once it was seen unchanged
//! for as long as it says that it lasts. Nothing is written over a renewal that came in between. One that somebody deletes lasts as long too, where this
//! replica saw it held: who held it may not know it yet. Who comes later finds none, and knows nothing of it. Nobody stands where the API server goes back to
//! an older state: what this replica has cached meanwhile may be of what is no more.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use kube::api::Api;
use tokio::time::Instant;

use super::expiry::HighestVersion;
use super::{LOOK, LeaseError, holder, set_free};
use crate::config::settings::LeaderElection;
use crate::k8s::apply::is_status;

/// What a replica that waits has seen of the Lease.
#[derive(Debug)]
pub(super) struct Candidate {
    leases: Api<Lease>,
    election: LeaderElection,
    identity: String,
    seen: Option<LastSeen>,
    pub(super) highest: HighestVersion,
}

/// What a Lease that somebody else holds says, and since when it was seen to say just that, or to be gone. Its annotations do not count: who renews it
/// changes the times.
#[derive(Debug)]
struct LastSeen {
    spec: LeaseSpec,
    presence: Presence,
    since: Instant,
}

/// Whether a Lease that somebody held is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    There,
    Deleted,
}

/// What a Lease is to a replica that would like to lead.
#[derive(Debug, PartialEq, Eq)]
enum LeaseState {
    /// Nobody's, or missing where nobody was seen to hold it.
    Free,
    /// It belongs to nobody any more, but says otherwise; or to this one, which has given up to take it.
    Over,
    /// Somebody else's, until then if it is not renewed.
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

    /// Resolves once the lease can be taken at once. One that is over is freed first.
    ///
    /// # Errors
    /// [`LeaseError::WentBack`].
    pub(super) async fn until_free(&mut self) -> Result<(), LeaseError> {
        loop {
            let next = match self.look().await? {
                Some((LeaseState::Free, _)) => return Ok(()),
                Some((LeaseState::Over, Some(lease))) if self.freed(&lease).await => return Ok(()),
                Some((LeaseState::Held(until), _)) => until.min(Instant::now() + LOOK),
                _ => Instant::now() + LOOK,
            };
            tokio::time::sleep_until(next).await;
        }
    }

    /// Resolves once somebody else holds the lease, it is gone, or nobody has taken it for long.
    ///
    /// # Errors
    /// [`LeaseError::WentBack`].
    pub(super) async fn until_held(&mut self) -> Result<(), LeaseError> {
        let began = Instant::now();
        while began.elapsed() < self.election.duration {
            tokio::time::sleep(LOOK).await;
            // Without a Lease the manager has nothing to take.
            if let Some((LeaseState::Held(_), _) | (_, None)) = self.look().await? {
                break;
            }
        }
        Ok(())
    }

    /// Nothing where the lease cannot be read.
    async fn look(&mut self) -> Result<Option<(LeaseState, Option<Lease>)>, LeaseError> {
        // One that is answered late only makes the lease seem younger.
        let look = self.leases.get_opt(&self.election.lease);
        match tokio::time::timeout(self.election.duration, look).await {
            Ok(Ok(lease)) => {
                if let Some(lease) = &lease {
                    self.highest.see(lease)?;
                }
                return Ok(Some((self.judge(lease.as_ref()), lease)));
            }
            Ok(Err(error)) => tracing::warn!(%error, "the lease cannot be read"),
            Err(_) => tracing::warn!("the lease cannot be read in time"),
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
                // With what is left of its holder the manager would take it for one that is held.
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

    /// What a Lease is that is not there: what was seen of it has still to pass, and then there is nothing to free.
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

    /// What a Lease is that somebody else holds, or held when it was deleted.
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

    /// Whether it could be freed. Not where it was written since it was read.
    async fn freed(&self, lease: &Lease) -> bool {
        if let Some(former) = holder(lease).filter(|holder| *holder != self.identity) {
            tracing::warn!(former, "the lease was not renewed for as long as it lasts");
        }
        match set_free(&self.leases, lease).await {
            Ok(()) => true,
            Err(error) if is_status(&error, 409) => false,
            Err(error) => {
                tracing::warn!(%error, "the lease cannot be freed");
                false
            }
        }
    }
}
