//! The leader and the address of its hub, from the Lease.
//!
//! Promises: the address is the one that the leading process has written. None is known after its
//! Lease has expired. While another replica takes over, the address may be outdated for a moment:
//! then that replica redirects callers.

use std::net::SocketAddr;
use std::time::Duration;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::Api;
use kube::runtime::{WatchStreamExt, watcher};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Identity;
use crate::config::settings::LeaderElection;

#[cfg(test)]
mod tests;

/// Annotation of the Lease: host and port of the leader's hub.
pub(super) const HUB_ADDRESS: &str = "lockstep.dev/hub-address";

/// The leader's address, kept up to date by [`follow`].
#[derive(Debug, Clone)]
pub struct LeaderAddress {
    known: watch::Receiver<Option<KnownLeader>>,
    own: OwnReplica,
}

/// This replica, which redirects no caller to itself.
#[derive(Debug, Clone, Default)]
struct OwnReplica {
    /// The identity with which it holds the Lease.
    holder: String,
    /// The address of its hub.
    hub: Option<SocketAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownLeader {
    holder: String,
    hub: Hub,
    /// When the Lease should have been renewed. Otherwise the leader has most likely died.
    renewed_until: Instant,
    until: Instant,
}

/// The leader's hub, as far as the Lease states its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hub {
    /// The holder has not written its address yet.
    NotWrittenYet,
    /// The holder publishes no address.
    NotPublished,
    Address(SocketAddr),
}

/// How late a renewal may be.
const LATE: Duration = Duration::from_millis(500);

impl LeaderAddress {
    /// An address that never becomes known.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            known: watch::channel(None).1,
            own: OwnReplica::default(),
        }
    }

    /// An address that never changes.
    #[cfg(test)]
    pub(crate) fn at(address: SocketAddr) -> Self {
        let until = Instant::now() + Duration::from_secs(3600);
        Self {
            known: watch::channel(Some(KnownLeader {
                holder: "leader".to_owned(),
                hub: Hub::Address(address),
                renewed_until: until,
                until,
            }))
            .1,
            own: OwnReplica::default(),
        }
    }

    /// Host and port of the leader's hub, if another replica leads and the address is known.
    #[must_use]
    pub fn get(&self) -> Option<SocketAddr> {
        match self.with_leader(|known| known.hub)? {
            Hub::Address(address) => Some(address).filter(|address| Some(*address) != self.own.hub),
            Hub::NotWrittenYet | Hub::NotPublished => None,
        }
    }

    /// Resolves when another replica leads, has renewed the Lease in time, and has written its
    /// address or publishes none. Cancel-safe.
    pub(crate) async fn renewed(&self) {
        let is_other = |known: &KnownLeader| match known.hub {
            Hub::Address(address) => Some(address) != self.own.hub,
            // A caller finds the leader sooner by itself than by waiting here.
            Hub::NotPublished => known.holder != self.own.holder,
            Hub::NotWrittenYet => false,
        };
        let is_renewed = |known: &KnownLeader| is_other(known) && Instant::now() < known.renewed_until;
        let mut known = self.known.clone();
        if known
            .wait_for(|known| known.as_ref().is_some_and(is_renewed))
            .await
            .is_err()
        {
            // The task that follows the Lease is gone.
            std::future::pending().await
        }
    }

    /// Name of the leader's pod, this replica or another, if it is known.
    #[must_use]
    pub fn holder(&self) -> Option<String> {
        // The rest of the identity distinguishes the processes of a pod.
        let name = |holder: &str| {
            holder
                .rsplit_once('_')
                .map_or(holder, |(name, _)| name)
                .to_owned()
        };
        self.with_leader(|known| name(&known.holder))
    }

    fn with_leader<T>(&self, at: impl FnOnce(&KnownLeader) -> T) -> Option<T> {
        let known = self.known.borrow();
        known
            .as_ref()
            .filter(|known| Instant::now() < known.until)
            .map(at)
    }
}

/// Follows the Lease until `end`. The address stays unknown unless the future runs.
pub(crate) fn follow(
    client: &kube::Client,
    election: &LeaderElection,
    own: &Identity,
    hub: Option<SocketAddr>,
    end: CancellationToken,
) -> (LeaderAddress, impl Future<Output = ()> + Send + 'static) {
    let (sender, known) = watch::channel(None);
    let leases: Api<Lease> = Api::namespaced(client.clone(), &election.namespace);
    let (name, lasts, every) = (election.lease.clone(), election.duration, election.retry);
    let task = async move {
        let mut claim = Claim::default();
        let leases = watcher::watch_object(leases, &name).default_backoff();
        let mut leases = std::pin::pin!(leases);
        while let Some(Some(seen)) = end.run_until_cancelled(leases.next()).await {
            match seen {
                Ok(lease) => {
                    let known = lease.and_then(|lease| {
                        let known = read(&lease, lasts, every)?;
                        let hub = match claim.is_taken_by(&lease) {
                            true => known.hub,
                            false => Hub::NotWrittenYet,
                        };
                        Some(KnownLeader { hub, ..known })
                    });
                    sender.send_replace(known);
                }
                Err(error) => tracing::debug!(%error, "lease not watched"),
            }
        }
    };
    let own = OwnReplica {
        holder: own.holder(),
        hub,
    };
    (LeaderAddress { known, own }, task)
}

/// The holder of the Lease, and the process that wrote the address. A replica that takes the Lease
/// first becomes its holder, and replaces the former address a moment later.
#[derive(Debug, Default)]
struct Claim {
    holder: String,
    process: Option<String>,
}

impl Claim {
    /// True if the address in the Lease is now the holder's.
    fn is_taken_by(&mut self, lease: &Lease) -> bool {
        let holder = super::holder(lease).unwrap_or_default();
        let process = super::leader_process(lease);
        if holder != self.holder && process.is_some() && process == self.process.as_deref() {
            return false;
        }
        *self = Self {
            holder: holder.to_owned(),
            process: process.map(str::to_owned),
        };
        true
    }
}

/// Reads a Lease that has just changed. It is renewed at this interval, long before it expires.
fn read(lease: &Lease, lasts: Duration, every: Duration) -> Option<KnownLeader> {
    let holder = super::holder(lease)?;
    let annotations = lease.metadata.annotations.as_ref();
    let address = annotations.and_then(|annotations| annotations.get(HUB_ADDRESS));
    Some(KnownLeader {
        holder: holder.to_owned(),
        hub: address
            .and_then(|address| address.parse().ok())
            .map_or(Hub::NotPublished, Hub::Address),
        renewed_until: Instant::now() + every + LATE,
        until: Instant::now() + lasts,
    })
}
