//! HTTPS: connections in, each in a task of its own.
//!
//! Promises: a certificate that changes is used from the next connection on. A client that is slow or silent holds up nobody else. At the
//! shutdown, requests under way are answered.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::serve::http;

#[cfg(test)]
mod tests;

/// Connections at the same time. The API server keeps up to 25 of them for each webhook.
const MOST_CONNECTIONS: usize = 512;
/// How long a client may take to agree on encryption.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// How long requests under way may take at the shutdown.
const GRACE: Duration = Duration::from_secs(8);

/// Serves `router` until `shutdown`.
pub(super) async fn run(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    shutdown: &CancellationToken,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if connections.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    connections.spawn(serve(stream, Arc::clone(&tls), router.clone(), shutdown.clone()));
                }
                Err(error) => {
                    // Out of file descriptors, most likely: some come back.
                    tracing::warn!(%error, "a connection to the webhooks could not be accepted");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = connections.join_next() => {}
            () = shutdown.cancelled() => break,
        }
    }
    drop(listener);
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(GRACE, all).await.is_err() {
        connections.shutdown().await;
    }
}

async fn serve(stream: TcpStream, config: Arc<ServerConfig>, router: Router, shutdown: CancellationToken) {
    // Answers are small and awaited: they must not wait for more to send.
    let _ = stream.set_nodelay(true);
    match tokio::time::timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await {
        Ok(Ok(stream)) => http(stream, router, shutdown).await,
        Ok(Err(error)) => tracing::debug!(%error, "no TLS with a client of the webhooks"),
        Err(_) => {}
    }
}
