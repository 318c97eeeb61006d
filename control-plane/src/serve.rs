//! The HTTP endpoints of every replica: health and metrics.

mod access;
mod certificate;
mod connection;
mod metrics;

use anyhow::Context as _;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::settings::Health;
use crate::watch::Stores;

pub use metrics::metrics;

/// Serves whether the process runs (`/healthz`) and whether the caches are filled (`/readyz`), in plain HTTP, until `shutdown`.
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
    let listener = TcpListener::bind(address)
        .await
        .with_context(|| format!("health endpoint: {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "health endpoint listens");
    axum::serve(listener, router)
        .with_graceful_shutdown(shutdown.cancelled_owned())
        .await?;
    Ok(())
}
