//! The server of the platform API.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use lockstep_proto::platform::v1::platform_server::PlatformServer;
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio_stream::StreamExt as _;
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic_health::pb::health_server::HealthServer;

use super::calls::Calls;
use super::deadline::Deadlines;
use super::health;
use super::service::PlatformService;
use crate::net::tls::{self, ConnectionLimit, HubIdentity, UnauthenticatedStream};

/// Connections from one address, with or without a token. Further ones wait, and are then closed.
const CONNECTIONS: usize = 256;
/// Calls and watches at the same time on one connection.
const MAX_STREAMS: u32 = 64;
/// Largest request, in bytes.
const MAX_REQUEST: usize = 16 * 1024;
/// Bytes that a caller may send in one call, and in all calls of a connection, before they are
/// read.
const WINDOWS: (u32, u32) = (32 << 10, 128 << 10);
/// Longest headers of a call, in bytes. A token has one or two KiB.
const LONGEST_HEAD: u32 = 16 << 10;
/// How long a call may take. It may need the API server.
const CALL: Duration = Duration::from_secs(30);
/// How long the server waits for open streams at its shutdown. A caller that reads nothing could
/// hold one open for ever.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Serves the platform API until `shutdown` is cancelled. It begins once there is a certificate.
///
/// # Errors
/// If the address cannot be bound or the server fails.
pub(crate) async fn run(
    address: Option<SocketAddr>,
    identity: Arc<HubIdentity>,
    service: PlatformService,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Some(address) = address else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let Some(tls) = shutdown.run_until_cancelled(identity.ready()).await else {
        return Ok(());
    };
    let listener = crate::net::serve::listen(address)
        .await
        .with_context(|| format!("platform API: {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "platform API listens");
    serve_on(listener, tls?, service).await
}

pub(super) async fn serve_on(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    service: PlatformService,
) -> anyhow::Result<()> {
    let shutdown = service.shutdown.clone();
    let health = health::Health::new(Arc::clone(&service.board), shutdown.clone());
    let (reflection, reflection_alpha) = health::reflection(&shutdown, MAX_REQUEST)?;
    let limit = ConnectionLimit::new(CONNECTIONS, |peer, why| {
        tracing::debug!(peer, reason = why.reason(), error = %why, "closed a connection to the platform API");
    });
    let connections = tls::accept(listener, tls, limit)
        .map(|accepted| accepted.map(|connection| UnauthenticatedStream::of(connection, None)));
    let served = Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(30)))
        .http2_keepalive_timeout(Some(Duration::from_secs(10)))
        .max_concurrent_streams(Some(MAX_STREAMS))
        .initial_stream_window_size(WINDOWS.0)
        .initial_connection_window_size(WINDOWS.1)
        .http2_max_header_list_size(LONGEST_HEAD)
        .layer(Calls::default())
        .layer(Deadlines { call: CALL })
        .add_service(PlatformServer::new(service).max_decoding_message_size(MAX_REQUEST))
        .add_service(HealthServer::new(health).max_decoding_message_size(MAX_REQUEST))
        .add_service(reflection)
        .add_service(reflection_alpha)
        .serve_with_incoming_shutdown(connections, shutdown.clone().cancelled_owned());
    let grace = async {
        shutdown.cancelled().await;
        tokio::time::sleep(SHUTDOWN_GRACE).await;
    };
    tokio::select! {
        served = served => served?,
        () = grace => tracing::info!("some calls of the platform API did not end in time"),
    }
    Ok(())
}
