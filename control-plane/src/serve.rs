//! The plain HTTP endpoints: health and metrics.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::Context as _;
use axum::Router;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::metrics::{CONTENT_TYPE, Metrics};
use crate::settings::Health;
use crate::watch::Stores;

/// Serves whether the process runs (`/healthz`) and whether the caches are filled (`/readyz`), until `shutdown`.
///
/// # Errors
/// Where the address cannot be bound.
pub async fn health(settings: Health, stores: Stores, shutdown: CancellationToken) -> anyhow::Result<()> {
    let Some(address) = settings.address else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let ready = move || {
        let ready = stores.is_ready();
        async move {
            if ready {
                (StatusCode::OK, "ok")
            } else {
                (StatusCode::SERVICE_UNAVAILABLE, "the caches are not filled yet")
            }
        }
    };
    let router = Router::new()
        .route(&settings.liveness, get(|| async { "ok" }))
        .route(&settings.readiness, get(ready));
    serve("health", address, router, shutdown).await
}

/// Serves `/metrics` until `shutdown`.
///
/// # Errors
/// Where the address cannot be bound.
pub async fn metrics(
    address: SocketAddr,
    metrics: Arc<Metrics>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let encode = move || {
        let text = metrics.encode();
        async move {
            match text {
                Ok(text) => ([(header::CONTENT_TYPE, CONTENT_TYPE)], text).into_response(),
                Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
            }
        }
    };
    serve(
        "metrics",
        address,
        Router::new().route("/metrics", get(encode)),
        shutdown,
    )
    .await
}

async fn serve(
    what: &'static str,
    address: SocketAddr,
    router: Router,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("{what} endpoint: {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "{what} endpoint listens");
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await?;
    Ok(())
}
