//! The status page: a read-only view of groups in a browser.
//!
//! ```text
//! Board ──> view (a whole state as JSON) ─┬─> /state   once
//!                                         └─> /events  again whenever it has changed ──> page.js
//! ```
//!
//! Promises: the page changes nothing, and answers only GET and HEAD. It has no authentication, so
//! by default it listens on the loopback interface only, for those who may forward ports of the
//! pod. Pages of other sites can read nothing of it, even if they point a name of theirs at the
//! loopback interface. A reader gets the newest state, and nothing queues up for it. All readers
//! together take a tenth of one core, for any number of groups.
//!
//! Every replica serves the page. A replica that does not lead says so, and names the leader.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::header;
use axum::middleware;
use axum::response::IntoResponse;
use axum::routing::get;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::controllers::restart::board::Board;
use crate::net::serve::{Activity, Connections, http, listen};

mod answers;
mod request;
mod view;

#[cfg(test)]
mod tests;

/// A browser opens at most six.
const CONNECTIONS: Connections = Connections {
    to: "the status page",
    most: 128,
    grace: Duration::from_secs(2),
};
/// Longest life of a connection, so that a reader that has stopped reading frees its slot. A page
/// that still reads reconnects.
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// Most pages that follow changes at the same time.
const MAX_READERS: usize = 64;
/// The pause after rendering a state, as a multiple of the time that it took.
const REST: u32 = 9;

/// The files of the page: path, type, text.
const FILES: [(&str, &str, &str); 10] = [
    (
        "/",
        "text/html; charset=utf-8",
        include_str!("page/files/page.html"),
    ),
    (
        "/page.css",
        "text/css; charset=utf-8",
        include_str!("page/files/page.css"),
    ),
    ("/icon.svg", "image/svg+xml", include_str!("page/files/icon.svg")),
    ("/page.js", SCRIPT, include_str!("page/files/page.js")),
    ("/list.js", SCRIPT, include_str!("page/files/list.js")),
    ("/group.js", SCRIPT, include_str!("page/files/group.js")),
    ("/graph.js", SCRIPT, include_str!("page/files/graph.js")),
    ("/cells.js", SCRIPT, include_str!("page/files/cells.js")),
    ("/timeline.js", SCRIPT, include_str!("page/files/timeline.js")),
    ("/dom.js", SCRIPT, include_str!("page/files/dom.js")),
];
const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Name of the leading replica, if it is known.
pub type WhoLeads = Arc<dyn Fn() -> Option<String> + Send + Sync>;

/// The replica that serves a page.
#[derive(Clone, Debug)]
pub struct Replica {
    /// Name of its pod.
    pub name: String,
    /// Namespace of the product.
    pub namespace: String,
}

/// What the status page shows.
#[derive(Clone)]
pub struct StatusPage {
    board: Arc<Board>,
    replica: Arc<Replica>,
    /// The port that it listens on.
    port: u16,
    leader: WhoLeads,
    /// One state is rendered at a time.
    turn: Arc<Semaphore>,
    readers: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl StatusPage {
    /// A page that sends its readers changes until `shutdown`.
    #[must_use]
    pub fn new(board: Arc<Board>, replica: Replica, leader: WhoLeads, shutdown: CancellationToken) -> Self {
        Self {
            board,
            replica: Arc::new(replica),
            port: 0,
            leader,
            turn: Arc::new(Semaphore::new(1)),
            readers: Arc::new(Semaphore::new(MAX_READERS)),
            shutdown,
        }
    }

    /// Serves the page at this address until the shutdown. If the address is in use there is no
    /// page: no job depends on it.
    ///
    /// # Errors
    /// If the listener has no address.
    pub async fn run(self, address: Option<SocketAddr>) -> anyhow::Result<()> {
        let Some(address) = address else {
            self.shutdown.cancelled().await;
            return Ok(());
        };
        let listener = match listen(address).await {
            Ok(listener) => listener,
            Err(error) => {
                tracing::warn!(%address, %error, "no status page: the address cannot be used");
                self.shutdown.cancelled().await;
                return Ok(());
            }
        };
        let address = listener.local_addr()?;
        tracing::info!(%address, "status page listens");
        if !address.ip().is_loopback() {
            tracing::warn!(%address, "anyone who reaches this address sees all groups: the status page has no authentication");
        }
        self.serve(listener).await
    }

    /// Serves the page on this listener until the shutdown.
    ///
    /// # Errors
    /// If the listener has no address.
    pub async fn serve(mut self, listener: TcpListener) -> anyhow::Result<()> {
        let shutdown = self.shutdown.clone();
        let address = listener.local_addr()?;
        self.port = address.port();
        let router = router(self, address);
        let serve = |stream: TcpStream, _, activity: Arc<Activity>| {
            let (router, shutdown) = (router.clone(), shutdown.clone());
            async move {
                // Events are small and urgent: they must not wait for more data.
                let _ = stream.set_nodelay(true);
                let served = http(stream, router, &activity, shutdown);
                let _ = tokio::time::timeout(LONGEST, served).await;
            }
        };
        CONNECTIONS.accept(listener, serve, &shutdown).await;
        Ok(())
    }
}

fn router(page: StatusPage, address: SocketAddr) -> Router {
    let answers = Router::new()
        .route("/state", get(answers::state))
        .route("/state/{namespace}/{name}", get(answers::state))
        .route("/events", get(answers::events))
        .route("/events/{namespace}/{name}", get(answers::events))
        .with_state(page);
    FILES
        .into_iter()
        .fold(answers, |router, (path, kind, text)| {
            router.route(path, get(move || file(kind, text)))
        })
        .layer(middleware::from_fn_with_state(address.ip(), request::guard))
}

async fn file(kind: &'static str, text: &'static str) -> impl IntoResponse {
    ([(header::CONTENT_TYPE, kind)], text)
}
