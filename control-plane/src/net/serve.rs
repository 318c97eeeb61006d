//! The HTTP endpoints of every replica: health and metrics.

mod access;
mod activity;
mod certificate;
mod connection;
mod connections;
mod listen;
mod metrics_endpoint;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;
use axum::Router;
use axum::http::{StatusCode, Uri};
use tokio_util::sync::CancellationToken;

use crate::config::settings::Health;
use crate::k8s::watch::Stores;

pub use crate::k8s::api_thread::Pulse;
pub(crate) use access::{AccessChecker, Action, Verdict};
pub(crate) use activity::Activity;
pub(crate) use connection::{HANDSHAKE_RECORD, http, turn_down};
pub(crate) use connections::{Connections, network};
pub(crate) use listen::{listen, listen_once_free};
pub use metrics_endpoint::metrics;

/// The kubelet opens a connection for each probe. The limit keeps other clients of the port from
/// using up file descriptors.
const HEALTH: Connections = Connections {
    to: "the health endpoint",
    most: 128,
    grace: Duration::from_secs(1),
};

/// Serves `/healthz` and `/readyz` in plain HTTP until `shutdown`. The first fails if one of these
/// threads is stuck; the second until the caches are filled and the webhooks and the hub are
/// served.
///
/// # Errors
/// The address cannot be bound.
pub async fn health(
    settings: Health,
    stores: Stores,
    threads: Vec<(&'static str, Pulse)>,
    servers: Awaited,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let Some(address) = settings.address else {
        shutdown.cancelled().await;
        return Ok(());
    };
    let missing = move || {
        if !stores.is_ready() {
            Some("the caches are not filled yet".to_owned())
        } else {
            servers.missing().map(str::to_owned)
        }
    };
    let stuck = move || {
        let now = Instant::now();
        threads.iter().find_map(|(does, pulse)| {
            let silent = pulse.stuck_for(now)?.as_secs();
            Some(format!("the thread that {does} has been stuck for {silent} s"))
        })
    };
    let router = Router::new().fallback(async move |uri: Uri| {
        let (check, missing) = if names(uri.path(), &settings.liveness, "healthz") {
            ("healthz", stuck())
        } else if names(uri.path(), &settings.readiness, "readyz") {
            ("readyz", missing())
        } else {
            return (StatusCode::NOT_FOUND, "404 page not found".to_owned());
        };
        match missing {
            None if is_verbose(&uri) => (StatusCode::OK, format!("[+]{check} ok\nhealthz check passed\n")),
            None => (StatusCode::OK, "ok".to_owned()),
            Some(missing) => (StatusCode::SERVICE_UNAVAILABLE, missing),
        }
    });
    let listener = listen(address)
        .await
        .with_context(|| format!("health endpoint: {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "health endpoint listening");
    let serve = |stream, _, activity: Arc<Activity>| {
        let (router, shutdown) = (router.clone(), shutdown.clone());
        async move { http(stream, router, &activity, shutdown).await }
    };
    HEALTH.accept(listener, serve, &shutdown).await;
    Ok(())
}

/// True if a path belongs to an endpoint. As in upstream, it may end in a slash and name the only
/// check of the endpoint.
fn names(path: &str, endpoint: &str, check: &str) -> bool {
    let below = path.strip_prefix(endpoint);
    below.is_some_and(|below| {
        let name = below.trim_end_matches('/');
        name.is_empty() || name.strip_prefix('/') == Some(check)
    })
}

/// True if the answer should name each check, as in upstream.
fn is_verbose(uri: &Uri) -> bool {
    let keys = uri.query().into_iter().flat_map(|query| query.split('&'));
    keys.filter_map(|pair| pair.split('=').next())
        .any(|key| key == "verbose")
}

/// Set once a server of this replica accepts calls. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// True if the server listens and has a certificate.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Marks the server as ready until the process ends.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The servers that must be ready before the replica is. A disabled server is `None`.
#[derive(Clone, Debug, Default)]
pub struct Awaited {
    /// The admission webhooks.
    pub webhooks: Option<Ready>,
    /// The server for node daemons.
    pub hub: Option<Ready>,
}

impl Awaited {
    /// What is not ready yet.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let is_missing = |server: &Option<Ready>| server.as_ref().is_some_and(|server| !server.is_ready());
        if is_missing(&self.webhooks) {
            Some("the webhooks are not served yet")
        } else if is_missing(&self.hub) {
            Some("the hub is not served yet")
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_check_is_named_on_request() {
        for (uri, verbose) in [
            ("/healthz", false),
            ("/healthz?verbose", true),
            ("/readyz?a=b&verbose=1", true),
            ("/readyz?verbosely", false),
            ("/readyz?is=verbose", false),
        ] {
            assert_eq!(is_verbose(&Uri::from_static(uri)), verbose, "{uri}");
        }
    }

    #[test]
    fn endpoints_have_upstreams_paths() {
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
