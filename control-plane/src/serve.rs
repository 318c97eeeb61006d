//! The HTTP endpoints of every replica: health and metrics.

mod access;
mod activity;
mod certificate;
mod connection;
mod connections;
mod listen;
mod metrics;
mod plain_text;

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use tokio_util::sync::CancellationToken;

use crate::settings::Health;
use crate::watch::Stores;
use crate::webhook;

pub(crate) use access::{Access, Verdict, Wish};
pub(crate) use activity::Activity;
pub(crate) use connection::http;
pub(crate) use connections::Connections;
pub(crate) use listen::listen;
pub use metrics::metrics;
pub(crate) use plain_text::{HANDSHAKE_RECORD, turn_down};

/// kubelet opens one for each probe. Whoever else reaches the port takes no file descriptors from the others.
const HEALTH: Connections = Connections {
    to: "the health endpoint",
    most: 128,
    grace: Duration::from_secs(1),
};

/// Serves whether the process runs (`/healthz`) and whether the caches are filled and the webhooks served
/// (`/readyz`), in plain HTTP, until `shutdown`.
///
/// # Errors
/// Where the address cannot be bound.
pub async fn health(
    settings: Health,
    stores: Stores,
    webhooks: Option<webhook::Ready>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Some(address) = settings.address else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let ready = move || {
        let missing = if !stores.is_ready() {
            Some("the caches are not filled yet")
        } else if webhooks.as_ref().is_some_and(|webhooks| !webhooks.is_ready()) {
            Some("the webhooks are not served yet")
        } else {
            None
        };
        async move {
            match missing {
                None => (StatusCode::OK, "ok"),
                Some(missing) => (StatusCode::SERVICE_UNAVAILABLE, missing),
            }
        }
    };
    let router = Router::new()
        .route(&settings.liveness, get(|| async { "ok" }))
        .route(&settings.readiness, get(ready));
    let listener = listen(address)
        .await
        .with_context(|| format!("health endpoint: {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "health endpoint listens");
    let serve = |stream, _, activity: Arc<Activity>| {
        let (router, shutdown) = (router.clone(), shutdown.clone());
        async move { http(stream, router, &activity, shutdown).await }
    };
    HEALTH.accept(listener, serve, &shutdown).await;
    Ok(())
}
