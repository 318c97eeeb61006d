//! The status page: what people see of groups in a browser, and nothing that they could do.
//!
//! ```text
//! Board ──> view (a whole state as JSON) ─┬─> /state   once
//!                                         └─> /events  again whenever it has changed ──> page.js
//! ```
//!
//! Promises: it changes nothing, and answers GET and HEAD alone; it asks nobody who they are, which
//! is why it listens on the loopback interface if nothing else is said: whoever may forward
//! ports of the pod sees it; a page of another site reads nothing of it, whatever names that site
//! gives to the loopback interface; nothing queues up for a reader, who is sent the newest state or
//! nothing; and all readers together take a tenth of one core, however many groups there are.
//!
//! Every replica serves it. One that does not lead says so, and who does.

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
mod events;
mod request;
mod view;

#[cfg(test)]
mod tests;

/// A browser opens six at most.
const CONNECTIONS: Connections = Connections {
    to: "the status page",
    most: 128,
    grace: Duration::from_secs(2),
};
/// How long a connection lasts at most: who has stopped reading holds a place for no longer. A page
/// that reads connects again.
const LONGEST: Duration = Duration::from_secs(15 * 60);
/// Pages that are told of changes at the same time.
const MAX_READERS: usize = 64;
/// After a state was made, nobody is made another one for so many times as long as that took.
const REST: u32 = 9;

/// The page, as it stands in its files: path, type, text.
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

/// Name of the replica that leads, as far as is known.
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
    /// That it listens on.
    port: u16,
    leader: WhoLeads,
    /// One state is made at a time.
    turn: Arc<Semaphore>,
    readers: Arc<Semaphore>,
    shutdown: CancellationToken,
}

impl StatusPage {
    /// A page that tells its readers of changes until `shutdown`.
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

    /// Serves the page at this address until the shutdown. Where the address is taken there is
    /// none: nobody's jobs depend on it.
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
            tracing::warn!(%address, "everybody who reaches this address sees all groups: the status page asks nobody who they are");
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
                // Events are small and awaited: they must not wait for more to send.
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
