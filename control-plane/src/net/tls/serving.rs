//! TLS with a certificate that may change: the next handshake uses the new one, and open
//! connections continue.

use std::io;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, stream};
use rustls::crypto::ring;
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::connection_limit::{ConnectionLimit, Rejected, UnknownConnection};
use super::steps::in_turn;
use crate::net::serve::{HANDSHAKE_RECORD, turn_down};

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// How many handshakes per core run a step before other tasks do. A step takes up to a millisecond.
const STEPS: usize = 8;

/// The certificate to serve with, once there is one.
pub(crate) type Certificate = Option<Arc<CertifiedKey>>;

/// Serves each connection with the current certificate.
#[derive(Debug)]
pub(crate) struct Current(pub(crate) watch::Receiver<Certificate>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Certificate {
        self.0.borrow().clone()
    }
}

/// TLS for gRPC with the current certificate.
///
/// All nodes reconnect at once after a change of leader, so handshakes must be cheap: AES-128 is
/// preferred, since its keys use SHA-256, for which processors have instructions that they lack for
/// the SHA-384 of AES-256. No tickets are sent, since no daemon resumes a session. Other gRPC
/// clients are few.
///
/// # Errors
/// rustls does not support the configuration.
pub(crate) fn grpc(certificate: watch::Receiver<Certificate>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut provider = ring::default_provider();
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.suite() != CipherSuite::TLS13_AES_128_GCM_SHA256);
    let mut config = ServerConfig::builder_with_provider(Arc::new(provider))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Current(certificate)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    config.ignore_client_order = true;
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    Ok(Arc::new(config))
}

/// A connection after its handshake.
pub(crate) struct AcceptedConnection {
    pub(crate) stream: TlsStream<TcpStream>,
    pub(crate) unknown: UnknownConnection,
}

/// The connections of a listener after their handshakes. All cores share the handshakes, since
/// cryptography is most of a connection's cost. A slow handshake delays no other, and a failed one
/// is skipped. When hundreds run at once, other tasks on these cores run between their steps.
pub(crate) fn accept(
    listener: TcpListener,
    config: Arc<ServerConfig>,
    limit: Arc<ConnectionLimit>,
) -> impl Stream<Item = io::Result<AcceptedConnection>> {
    let acceptor = TlsAcceptor::from(config);
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let turns = Arc::new(Semaphore::new(cores * STEPS));
    // Bounded by the connection limit.
    let handshakes = JoinSet::new();
    stream::unfold((listener, handshakes), move |(listener, mut handshakes)| {
        let (acceptor, limit, turns) = (acceptor.clone(), Arc::clone(&limit), Arc::clone(&turns));
        async move {
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, peer)) => {
                            if let Some(unknown) = limit.accept(peer.ip()) {
                                let shaken = welcome(acceptor.clone(), stream, unknown, Arc::clone(&turns));
                                handshakes.spawn(shaken);
                            }
                        }
                        Err(error) => {
                            // Probably out of file descriptors; some will be freed.
                            tracing::warn!(%error, "cannot accept a connection");
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    },
                    Some(done) = handshakes.join_next() => {
                        if let Ok(Some(accepted_connection)) = done {
                            return Some((Ok(accepted_connection), (listener, handshakes)));
                        }
                    }
                }
            }
        }
    })
}

/// Runs the handshake once the connection has a slot.
async fn welcome(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    mut unknown: UnknownConnection,
    turns: Arc<Semaphore>,
) -> Option<AcceptedConnection> {
    if !unknown.enter().await {
        return None;
    }
    // Messages are small and peers wait for them, so they must not be delayed.
    let _ = stream.set_nodelay(true);
    let shaken = tokio::select! {
        shaken = tokio::time::timeout(HANDSHAKE, handshake(acceptor, stream, turns)) => shaken,
        () = unknown.crowded_out() => Ok(Err(Some(Rejected::CrowdedOut))),
    };
    match shaken.unwrap_or(Err(Some(Rejected::Slow))) {
        Ok(stream) => return Some(AcceptedConnection { stream, unknown }),
        Err(Some(why)) => unknown.turn_away(&why),
        Err(None) => tracing::debug!(peer = %unknown.peer(), "the client left during its handshake"),
    }
    None
}

/// Fails without a reason if the client has left, as probes do.
async fn handshake(
    acceptor: TlsAcceptor,
    stream: TcpStream,
    turns: Arc<Semaphore>,
) -> Result<TlsStream<TcpStream>, Option<Rejected>> {
    let mut first = [0];
    if stream.peek(&mut first).await.map_err(|_| None)? == 0 {
        return Err(None);
    }
    if first != [HANDSHAKE_RECORD] {
        turn_down(stream).await;
        return Err(Some(Rejected::PlainText));
    }
    let shaken = in_turn(turns, acceptor.accept(stream)).await;
    shaken.map_err(|error| {
        let error = error.into_inner()?.downcast::<rustls::Error>().ok()?;
        Some((*error).into())
    })
}
