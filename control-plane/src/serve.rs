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
use axum::http::{StatusCode, Uri};
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
    let router = Router::new().fallback(async move |uri: Uri| {
        if names(uri.path(), &settings.liveness, "healthz") {
            (StatusCode::OK, "ok")
        } else if names(uri.path(), &settings.readiness, "readyz") {
            ready().await
        } else {
            (StatusCode::NOT_FOUND, "404 page not found")
        }
    });
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

/// Whether a path is that of an endpoint. As with upstream it may end in a slash, and name the one check that the endpoint has.
fn names(path: &str, endpoint: &str, check: &str) -> bool {
    let below = path.strip_prefix(endpoint);
    below.is_some_and(|below| {
        let name = below.trim_end_matches('/');
        name.is_empty() || name.strip_prefix('/') == Some(check)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_found_where_upstream_has_it() {
        let ready = |path: &str| names(path, "/readyz", "readyz");
        for path in ["/readyz", "/readyz/", "/readyz/readyz", "/readyz/readyz/"] {
            assert!(ready(path), "{path}");
        }
        for path in [
            "/",
            "/ready",
            "/readyzz",
            "/readyz/other",
            "/readyzreadyz",
            "/healthz",
        ] {
            assert!(!ready(path), "{path}");
        }
        assert!(names("/live/healthz", "/live", "healthz"));
    }
}
