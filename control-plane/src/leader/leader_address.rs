//! Who leads, and where its hub is, as the Lease says.
//!
//! Promises: it is the address that the process which leads has written down; none is known once its Lease has run out. An address may be
//! old for a moment, while another replica takes over: who goes there is told again.

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

/// This replica: it sends nobody to itself.
#[derive(Debug, Clone, Default)]
struct OwnReplica {
    /// As which it holds the Lease.
    holder: String,
    /// Where its hub is.
    hub: Option<SocketAddr>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct KnownLeader {
    holder: String,
    hub: Hub,
    /// The leader has most likely died where the Lease has not been renewed by then.
    renewed_until: Instant,
    until: Instant,
}

/// The leader's hub, as far as the Lease says where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hub {
    /// The holder has not written anything down yet.
    NotWrittenYet,
    /// The holder does not say where it is found, and never will.
    NotPublished,
    Address(SocketAddr),
}

/// How late a renewal may be.
const LATE: Duration = Duration::from_millis(500);

impl LeaderAddress {
    /// The leader is never known.
    #[must_use]
    pub fn unknown() -> Self {
        Self {
            known: watch::channel(None).1,
            own: OwnReplica::default(),
        }
    }

    /// It is there for good.
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

    /// Host and port of another replica that leads, as far as is known now.
    #[must_use]
    pub fn get(&self) -> Option<SocketAddr> {
        match self.look(|known| known.hub)? {
            Hub::Address(address) => Some(address).filter(|address| Some(*address) != self.own.hub),
            Hub::NotWrittenYet | Hub::NotPublished => None,
        }
    }

    /// Resolves once another replica leads that has renewed the Lease when it should, and has said where it is, or that it does not. Cancel-safe.
    pub(crate) async fn renewed(&self) {
        let is_other = |known: &KnownLeader| match known.hub {
            Hub::Address(address) => Some(address) != self.own.hub,
            // Who looks for it finds it sooner by himself than by waiting here.
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
            // Nobody follows the Lease.
            std::future::pending().await
        }
    }

    /// Name of the replica that leads, be it this one or another, as far as is known now: that of its pod.
    #[must_use]
    pub fn holder(&self) -> Option<String> {
        // What follows tells one process of a pod from the next.
        let name = |holder: &str| {
            holder
                .rsplit_once('_')
                .map_or(holder, |(name, _)| name)
                .to_owned()
        };
        self.look(|known| name(&known.holder))
    }

    fn look<T>(&self, at: impl FnOnce(&KnownLeader) -> T) -> Option<T> {
        let known = self.known.borrow();
        known
            .as_ref()
            .filter(|known| Instant::now() < known.until)
            .map(at)
    }
}

/// Follows the Lease until `end`. The second part must run for the first to know anything.
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
                Err(error) => tracing::debug!(%error, "the lease cannot be watched"),
            }
        }
    };
    let own = OwnReplica {
        holder: own.holder(),
        hub,
    };
    (LeaderAddress { known, own }, task)
}

/// Who had the Lease, and the process that has written its address. A replica that takes it becomes its holder first, and puts its own address in the
/// place of the former one's a moment later.
#[derive(Debug, Default)]
struct Claim {
    holder: String,
    process: Option<String>,
}

impl Claim {
    /// Whether the address that the Lease names now is that of its holder.
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

/// What a Lease that has just changed says. It is renewed each `every`, long before it has run out.
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
