//! HTTPS for the webhooks.
//!
//! Promises: a new certificate is used from the next connection on; and what [`Connections`]
//! promises.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::{Extension, Router};
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::review_body::PeerAddress;
use crate::net::serve::{Activity, Connections, http};

#[cfg(test)]
mod tests;

/// The API server keeps up to 25 connections for each webhook.
const CONNECTIONS: Connections = Connections {
    to: "the webhooks",
    most: 512,
    grace: Duration::from_secs(8),
};

/// Serves `router` until `shutdown`.
pub(super) async fn run(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    router: Router,
    shutdown: &CancellationToken,
) {
    let acceptor = TlsAcceptor::from(tls);
    let serve = |stream, peer: SocketAddr, activity| {
        serve(
            stream,
            acceptor.clone(),
            router.clone().layer(Extension(PeerAddress(peer.ip()))),
            activity,
            shutdown.clone(),
        )
    };
    CONNECTIONS.accept(listener, serve, shutdown).await;
}

async fn serve(
    stream: TcpStream,
    acceptor: TlsAcceptor,
    router: Router,
    activity: Arc<Activity>,
    shutdown: CancellationToken,
) {
    // Answers are small and urgent: they must not wait for more data.
    let _ = stream.set_nodelay(true);
    match acceptor.accept(stream).await {
        Ok(stream) => http(stream, router, &activity, shutdown).await,
        Err(error) => tracing::debug!(%error, "TLS with a client of the webhooks failed"),
    }
}
