//! TLS whose certificate may change: the next handshake has the new one, and connections that stand go on.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt as _};
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::task::AbortOnDropHandle;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Handshakes at the same time; others wait to be accepted.
const HANDSHAKES: usize = 1024;

/// The certificate to serve with, once there is one.
pub(crate) type Certificate = Option<Arc<CertifiedKey>>;

/// Serves each connection with the certificate of the moment.
#[derive(Debug)]
pub(crate) struct Current(pub(crate) watch::Receiver<Certificate>);

impl ResolvesServerCert for Current {
    fn resolve(&self, _: ClientHello<'_>) -> Certificate {
        self.0.borrow().clone()
    }
}

/// TLS for gRPC with the certificate of the moment.
///
/// # Errors
/// Where rustls does not support what it is asked for.
pub(crate) fn grpc(certificate: watch::Receiver<Certificate>) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(Arc::new(Current(certificate)));
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(Arc::new(config))
}

/// The connections of a listener, after their handshakes, which all cores share: their cryptography is most of what a connection costs. Who is slow
/// with that holds up nobody else, and who fails is left out.
pub(crate) fn accept(
    listener: TcpListener,
    config: Arc<ServerConfig>,
) -> impl Stream<Item = io::Result<TlsStream<TcpStream>>> {
    let acceptor = TlsAcceptor::from(config);
    TcpListenerStream::new(listener)
        .map(move |accepted| AbortOnDropHandle::new(tokio::spawn(handshake(acceptor.clone(), accepted))))
        .buffer_unordered(HANDSHAKES)
        .filter_map(|done| async move { done.ok().flatten().map(Ok) })
}

async fn handshake(acceptor: TlsAcceptor, accepted: io::Result<TcpStream>) -> Option<TlsStream<TcpStream>> {
    let stream = match accepted {
        Ok(stream) => stream,
        Err(error) => {
            // Out of file descriptors, most likely: some come back.
            tracing::warn!(%error, "a connection could not be accepted");
            tokio::time::sleep(Duration::from_millis(100)).await;
            return None;
        }
    };
    // Messages are small and awaited: they must not wait for more to send.
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => Some(stream),
        Ok(Err(error)) => {
            tracing::debug!(%error, "no TLS with a client");
            None
        }
        Err(_) => None,
    }
}
