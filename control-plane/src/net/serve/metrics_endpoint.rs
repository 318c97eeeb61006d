//! `/metrics`: over TLS for authorized clients, in plain HTTP for the loopback interface.
//!
//! Promises: over TLS only clients that the API server authenticates and authorizes get an answer.
//! Plain text from another machine is refused. [`Connections`] limits clients.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use kube::Client;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::access::{AccessChecker, Action, Verdict};
use super::certificate::Certificate;
use super::connection::Server;
use super::connections::Connections;
use super::listen::listen;
use crate::config::settings::{self, TlsOptions};
use crate::telemetry::metrics::{CONTENT_TYPE, Metrics, PLAIN_CONTENT_TYPE};

#[cfg(test)]
mod tests;

const CONNECTIONS: Connections = Connections {
    to: "the metrics endpoint",
    most: 64,
    grace: Duration::from_secs(5),
};

/// Serves `/metrics` until `shutdown`.
///
/// # Errors
/// The address cannot be bound, or no certificate can be generated.
pub async fn metrics(
    settings: settings::Metrics,
    tls: TlsOptions,
    client: Client,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Some(address) = settings.address else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let certificate = Certificate::new(settings.cert_dir, tls).context("metrics endpoint: certificate")?;
    let listener = listen(address)
        .await
        .with_context(|| format!("metrics endpoint: {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "metrics endpoint listening");
    run(
        listener,
        certificate,
        AccessChecker::new(client),
        metrics,
        &shutdown,
    )
    .await;
    Ok(())
}

async fn run(
    listener: TcpListener,
    certificate: Certificate,
    access: AccessChecker,
    metrics: Arc<Metrics>,
    shutdown: &CancellationToken,
) {
    let plain = Router::new()
        .route("/metrics", get(encode))
        .with_state(Arc::clone(&metrics));
    let secure = Router::new()
        .route("/metrics", get(authorized))
        .with_state(Arc::new((access, metrics)));
    let server = Arc::new(Server {
        certificate,
        plain,
        secure,
    });
    let serve = |stream, peer: SocketAddr, activity| {
        let trusted = is_loopback(peer.ip());
        Arc::clone(&server).serve(stream, trusted, activity, shutdown.clone())
    };
    CONNECTIONS.accept(listener, serve, shutdown).await;
}

/// True if the client is on this machine (or in this pod). An IPv6 socket shows IPv4 addresses as
/// mapped ones.
fn is_loopback(peer: IpAddr) -> bool {
    peer.to_canonical().is_loopback()
}

async fn encode(State(metrics): State<Arc<Metrics>>, headers: HeaderMap) -> Response {
    text(&metrics, &headers)
}

async fn authorized(State(state): State<Arc<(AccessChecker, Arc<Metrics>)>>, headers: HeaderMap) -> Response {
    let (access, metrics) = &*state;
    let Some(token) = bearer(&headers) else {
        return (StatusCode::UNAUTHORIZED, "Unauthorized").into_response();
    };
    match access.check("", token, &Action::Get("/metrics")).await {
        Ok(Verdict::Allowed) => text(metrics, &headers),
        Ok(Verdict::Unknown) => (StatusCode::UNAUTHORIZED, "Unauthorized").into_response(),
        Ok(Verdict::TooMany) => (StatusCode::TOO_MANY_REQUESTS, "Too many requests").into_response(),
        Ok(Verdict::Denied(user)) => {
            let message = format!("Authorization denied for user {user}");
            (StatusCode::FORBIDDEN, message).into_response()
        }
        Err(error) => {
            tracing::warn!(%error, "cannot authorize a client of the metrics endpoint");
            (StatusCode::INTERNAL_SERVER_ERROR, "Authentication failed").into_response()
        }
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .trim()
        .split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Encodes the metrics in the requested format: Prometheus asks for OpenMetrics. A client that asks
/// for no format gets the older one, as from Go's library.
fn text(metrics: &Metrics, headers: &HeaderMap) -> Response {
    let mut accepted = headers.get_all(header::ACCEPT).iter();
    let is_open = accepted.any(|types| {
        types
            .to_str()
            .is_ok_and(|types| types.contains("openmetrics-text"))
    });
    let (kind, text) = if is_open {
        (CONTENT_TYPE, metrics.encode())
    } else {
        (PLAIN_CONTENT_TYPE, metrics.encode_plain())
    };
    match text {
        Ok(text) => ([(header::CONTENT_TYPE, kind)], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}
