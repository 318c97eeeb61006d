//! Limits the connections on which no caller has authenticated, by address and by the memory for
//! all of them.
//!
//! ```text
//! accepted ──> waits for a slot ──> TLS handshake ──> unknown ──> admitted: not counted until it has no stream
//!    │                 │ 10 s           │ 5 s            │ the server's limit
//!    └─ too many ──────┴────────────────┴─ turned away ──┘
//!                                       └─ crowded out by another address
//! ```
//!
//! Promises: no client can block another address, whatever it opens. Admitted connections are not
//! counted, so thousands of daemons may share one address. All slots together take no more than a
//! part of the memory. When all are taken, the address with the most slots gives its oldest one to
//! an address with fewer.

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

/// The most connections that may wait, over all addresses.
const WAITING: usize = 16 * 1024;
/// The memory for waiting connections, most of it in the kernel.
const WAITING_MEMORY: Share = Share {
    parts: 32,
    each: 8 << 10,
};
/// The memory for connections with a slot: TLS, HTTP/2 and the socket.
const SERVED_MEMORY: Share = Share {
    parts: 32,
    each: 50 << 10,
};
/// How many connections of one address are accepted even if the queue is full: a client with many
/// addresses cannot lock out another one.
const ALWAYS: usize = 4;
/// How many connections of one address may wait per slot.
const WAITING_PER_SLOT: usize = 16;
/// How long a connection waits for a slot.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why a connection was rejected.
#[derive(Debug, Error)]
pub(crate) enum Rejected {
    /// Its address has too many other unauthenticated connections.
    #[error("too many unauthenticated connections from this address")]
    TooMany,
    /// All addresses together have too many, and this one has the most.
    #[error("the unauthenticated connection was closed to make room for other addresses")]
    CrowdedOut,
    /// It does not begin with a TLS record.
    #[error("the client speaks plain text, the port requires TLS")]
    PlainText,
    /// The client does not trust this server.
    #[error(
        "the client does not accept the server's certificate ({0:?}): it trusts another CA, or the certificate expired"
    )]
    Certificate(AlertDescription),
    /// The client and the server share no TLS version or suite, or the handshake is malformed.
    #[error("TLS handshake failed: {0}")]
    Tls(rustls::Error),
    /// The handshake took too long.
    #[error("the client did not finish its TLS handshake in time")]
    Slow,
    /// It does not speak HTTP/2.
    #[error("the client does not speak HTTP/2")]
    NotHttp2,
    /// Its HTTP/2 violates the protocol.
    #[error("the client's HTTP/2 is malformed: {0}")]
    Http2(&'static str),
    /// It sends more than a client may before it authenticates.
    #[error("the client sent too much before it authenticated")]
    Flood,
    /// The handshake succeeded, but no caller authenticated in time.
    #[error("no caller authenticated on the connection in time")]
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

/// Called with the client's name ([`ConnectionLimit::name`]) when a connection is rejected.
type OnRejected = Box<dyn Fn(&str, &Rejected) + Send + Sync>;

/// Limits the unauthenticated connections of one port.
pub(crate) struct ConnectionLimit {
    /// How many connections of one address may be in a handshake or wait for authentication.
    slots: usize,
    /// How many connections may wait, of all addresses.
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

/// The connections of one address.
struct Network {
    connections: usize,
    slots: Arc<Semaphore>,
}

impl ConnectionLimit {
    /// A limit with this many slots for each address.
    pub(crate) fn new(
        slots: usize,
        on_rejected: impl Fn(&str, &Rejected) + Send + Sync + 'static,
    ) -> Arc<Self> {
        Self::with_memory(memory_limit::limit(), slots, on_rejected)
    }

    /// The same for a process that may take `memory` bytes.
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

    /// The name of this address's clients. All addresses of one client share a name.
    pub(crate) fn name(peer: IpAddr) -> String {
        match network(peer) {
            IpAddr::V6(network) => format!("{network}/64"),
            address @ IpAddr::V4(_) => address.to_string(),
        }
    }

    /// Counts a new connection; `None` if it exceeds the limit.
    pub(super) fn accept(self: &Arc<Self>, peer: IpAddr) -> Option<UnknownConnection> {
        let unknown = self.readmit(peer);
        if unknown.is_none() {
            self.turn_away(peer, &Rejected::TooMany);
        }
        unknown
    }

    /// Counts a connection again that was exempt. Exceeding the limit is not reported.
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

    /// Reports why a connection was rejected.
    pub(super) fn turn_away(&self, peer: IpAddr, why: &Rejected) {
        (self.on_rejected)(&Self::name(peer), why);
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        // Nothing that holds this lock can leave it half-changed.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An unauthenticated connection. It counts until it is dropped.
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

    /// The peer's address.
    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// Waits for a slot of its address and an overall slot. False if none came in time; the
    /// connection is rejected.
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

    /// Protects its overall slot, if it has one, until the returned value is dropped.
    pub(super) fn in_use(&self) -> Option<InUse> {
        self.of_all.as_ref().map(Slot::in_use)
    }

    /// Ready once an address with fewer connections needs its slot. Wakes the task of the latest
    /// poll.
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

    /// Reports why it was rejected.
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
