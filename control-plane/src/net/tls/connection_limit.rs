//! How many connections there may be on which nobody has authenticated: by address, and by the
//! memory that there is for all of them.
//!
//! ```text
//! accepted ──> waits for a slot ──> TLS handshake ──> unknown ──> admitted: not counted until it has no stream
//!    │                 │ 10 s           │ 5 s            │ the server's patience
//!    └─ too many ──────┴────────────────┴─ turned away ──┘
//!                                       └─ crowded out by another address
//! ```
//!
//! Promises: a client, whatever it opens, keeps nobody of another address waiting; connections that
//! were admitted are not counted, so that thousands of daemons may come from one address. All slots
//! together take no more than a part of the memory. If they are taken, the address with the most of
//! them gives one to an address with fewer: the one that it has held longest.

use std::collections::HashMap;
use std::future::poll_fn;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustls::AlertDescription;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::slots::{ConnectionSlots, InUse, Slot};
use crate::k8s::memory_limit::{self, Share};
use crate::net::serve::network;

#[cfg(test)]
mod tests;

/// Connections that may wait, over all addresses.
const WAITING: usize = 16 * 1024;
/// The memory for those that wait, most of it in the kernel.
const WAITING_MEMORY: Share = Share {
    parts: 32,
    each: 8 << 10,
};
/// The memory for those that have a slot: TLS, HTTP/2 and the socket.
const SERVED_MEMORY: Share = Share {
    parts: 16,
    each: 32 << 10,
};
/// Those of an address that may come even so: who fills the door from many addresses keeps nobody
/// of another one out.
const ALWAYS: usize = 4;
/// Connections of one address that may wait, for each slot that it has.
const WAITING_PER_SLOT: usize = 16;
/// How long one waits for a slot.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a connection was turned away.
#[derive(Debug, Error)]
pub(crate) enum Rejected {
    /// Its address has too many others on which nobody has authenticated.
    #[error("there are too many connections from this address on which nobody has made himself known")]
    TooMany,
    /// There are too many of all addresses, and no other has more.
    #[error("others need the memory of this connection, on which nobody has authenticated")]
    CrowdedOut,
    /// It does not begin with a TLS record.
    #[error("the client speaks plain text: the port takes TLS alone")]
    PlainText,
    /// The client does not trust this server.
    #[error(
        "the client does not accept the certificate that it is shown ({0:?}): its CA is another one, or expired"
    )]
    Certificate(AlertDescription),
    /// There is no TLS that both speak, or it is nonsense.
    #[error("no TLS with the client: {0}")]
    Tls(rustls::Error),
    /// The handshake has taken too long.
    #[error("the client has not finished its TLS handshake in time")]
    Slow,
    /// It does not speak HTTP/2.
    #[error("the client does not speak HTTP/2")]
    NotHttp2,
    /// It speaks it in a way that no client does.
    #[error("the client's HTTP/2 is malformed: {0}")]
    Http2(&'static str),
    /// It sends more than clients do who have not made themselves known.
    #[error("the client has sent more than clients send before they make themselves known")]
    Flood,
    /// TLS, and then nobody.
    #[error("nobody has made himself known on the connection in time")]
    Unknown,
}

impl Rejected {
    /// Its name in metrics.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::TooMany => "too_many_connections",
            Self::CrowdedOut => "crowded_out",
            Self::PlainText => "plain_text",
            Self::Certificate(_) => "certificate",
            Self::Tls(_) => "tls",
            Self::Slow => "slow_handshake",
            Self::NotHttp2 => "not_http2",
            Self::Http2(_) => "http2",
            Self::Flood => "flood",
            Self::Unknown => "unknown_client",
        }
    }
}

impl From<rustls::Error> for Rejected {
    fn from(error: rustls::Error) -> Self {
        use AlertDescription as Alert;
        match error {
            rustls::Error::AlertReceived(
                alert @ (Alert::BadCertificate
                | Alert::UnsupportedCertificate
                | Alert::CertificateRevoked
                | Alert::CertificateExpired
                | Alert::CertificateUnknown
                | Alert::UnknownCA
                | Alert::DecryptError),
            ) => Self::Certificate(alert),
            error => Self::Tls(error),
        }
    }
}

/// Called with the name of the client ([`ConnectionLimit::name`]) when a connection is turned away.
type OnRejected = Box<dyn Fn(&str, &Rejected) + Send + Sync>;

/// Limits the connections of one port on which nobody has authenticated.
pub(crate) struct ConnectionLimit {
    /// Connections of one address that may shake hands, or wait to be known, at the same time.
    slots: usize,
    /// Connections that may wait, of all addresses.
    most: usize,
    on_rejected: OnRejected,
    waiting: Mutex<Waiting>,
    served: Arc<ConnectionSlots>,
}

#[derive(Default)]
struct Waiting {
    all: usize,
    by_network: HashMap<IpAddr, Network>,
}

/// What comes from one address.
struct Network {
    connections: usize,
    slots: Arc<Semaphore>,
}

impl ConnectionLimit {
    /// One with so many slots for each address.
    pub(crate) fn new(
        slots: usize,
        on_rejected: impl Fn(&str, &Rejected) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_memory(memory_limit::limit(), slots, on_rejected)
    }

    /// The same where the process may take so many bytes.
    pub(super) fn with_memory(
        memory: usize,
        slots: usize,
        on_rejected: impl Fn(&str, &Rejected) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let most = WAITING_MEMORY.fits(memory).clamp(ALWAYS, WAITING);
        Arc::new(Self {
            slots: slots.clamp(1, most),
            most,
            on_rejected: Box::new(on_rejected),
            waiting: Mutex::default(),
            served: ConnectionSlots::new(SERVED_MEMORY.fits(memory)),
        })
    }

    /// What clients of this address are called: all that one client may have are one.
    pub(crate) fn name(peer: IpAddr) -> String {
        match network(peer) {
            IpAddr::V6(network) => format!("{network}/64"),
            address @ IpAddr::V4(_) => address.to_string(),
        }
    }

    /// A connection has come from there. Nothing if it is one too many.
    pub(super) fn accept(self: &Arc<Self>, peer: IpAddr) -> Option<UnknownConnection> {
        let unknown = self.readmit(peer);
        if unknown.is_none() {
            self.turn_away(peer, &Rejected::TooMany);
        }
        unknown
    }

    /// The same of one that counted for nobody, and does again: nobody is told if there are too
    /// many.
    pub(super) fn readmit(self: &Arc<Self>, peer: IpAddr) -> Option<UnknownConnection> {
        let network = network(peer);
        let mut waiting = self.lock();
        let of_network = waiting.by_network.get(&network);
        let connections = of_network.map_or(0, |of_network| of_network.connections);
        let most = self.slots.saturating_mul(WAITING_PER_SLOT).min(self.most / 2);
        let is_full = waiting.all >= self.most && connections >= ALWAYS;
        if is_full || connections >= most {
            return None;
        }
        waiting.all += 1;
        let of_network = waiting.by_network.entry(network).or_insert_with(|| Network {
            connections: 0,
            slots: Arc::new(Semaphore::new(self.slots)),
        });
        of_network.connections += 1;
        Some(UnknownConnection {
            slots: Arc::clone(&of_network.slots),
            limit: Arc::clone(self),
            peer,
            slot: None,
            of_all: None,
        })
    }

    /// Says why somebody may not stay.
    pub(super) fn turn_away(&self, peer: IpAddr, why: &Rejected) {
        (self.on_rejected)(&Self::name(peer), why);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that holds this lock can leave it half-changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection on which nobody has authenticated. It counts until it is dropped.
pub(crate) struct UnknownConnection {
    limit: Arc<ConnectionLimit>,
    peer: IpAddr,
    slots: Arc<Semaphore>,
    slot: Option<OwnedSemaphorePermit>,
    of_all: Option<Slot>,
}

impl UnknownConnection {
    /// The limit that it counts for.
    pub(super) fn limit(&self) -> Arc<ConnectionLimit> {
        Arc::clone(&self.limit)
    }

    /// Where it comes from.
    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Waits for a slot of its address, and of all. False: there was none, and it is turned away.
    pub(super) async fn enter(&mut self) -> bool {
        let slot = async {
            let own = Arc::clone(&self.slots).acquire_owned().await.ok()?;
            let of_all = self.limit.served.take(network(self.peer)).await;
            Some((own, of_all))
        };
        if let Ok(Some((own, of_all))) = timeout(PATIENCE, slot).await {
            (self.slot, self.of_all) = (Some(own), Some(of_all));
            return true;
        }
        self.turn_away(&Rejected::TooMany);
        false
    }

    /// Keeps its slot of all until what is returned is dropped, if it has one.
    pub(super) fn in_use(&self) -> Option<InUse> {
        self.of_all.as_ref().map(Slot::in_use)
    }

    /// Ready once an address with fewer connections needs its slot. Wakes the task of the latest
    /// poll then.
    pub(super) fn poll_crowded_out(&self, cx: &Context<'_>) -> Poll<()> {
        match &self.of_all {
            Some(slot) => slot.poll_lost(cx),
            None => Poll::Pending,
        }
    }

    /// Resolves once an address with fewer connections needs its slot. Cancel-safe.
    pub(super) async fn crowded_out(&self) {
        poll_fn(|cx| self.poll_crowded_out(cx)).await;
    }

    /// Says why it may not stay.
    pub(super) fn turn_away(&self, why: &Rejected) {
        self.limit.turn_away(self.peer, why);
    }
}

impl Drop for UnknownConnection {
    fn drop(&mut self) {
        let mut waiting = self.limit.lock();
        waiting.all = waiting.all.saturating_sub(1);
        let network = network(self.peer);
        if let Some(of_network) = waiting.by_network.get_mut(&network) {
            of_network.connections = of_network.connections.saturating_sub(1);
            if of_network.connections == 0 {
                waiting.by_network.remove(&network);
            }
        }
    }
}
