//! A proxy between a control plane and the API server that disturbs requests.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use http::{Method, Request, StatusCode, header};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// What the proxy does to requests.
#[derive(Clone)]
pub(crate) enum Mode {
    /// Passes all requests.
    Pass,
    /// Refuses, loses and cuts off some requests of every kind.
    Chaos,
    /// Lets this many writes of a JobSet's objects pass, and none after that.
    StopAfter(u32),
}

/// A proxy. It ends when this is dropped.
pub(crate) struct Proxy {
    shared: Arc<Shared>,
    pub(crate) kubeconfig: PathBuf,
    task: JoinHandle<()>,
}

struct Shared {
    client: kube::Client,
    mode: Mutex<Mode>,
    random: Mutex<StdRng>,
    /// A count for [`Mode::Chaos`]: the writes disturbed since the last calm, or during a calm
    /// [`STORM`] plus the writes that have passed.
    disturbed: Mutex<u32>,
    stopped: watch::Sender<bool>,
}

/// After this many disturbed writes chaos lets the next few pass: retries of constant failures slow
/// down to one a minute.
const STORM: u32 = 3;
const CALM: u32 = 6;

/// The outcome of one request.
enum Fate {
    Pass,
    /// The proxy answers with this status; the API server does not see the request.
    Refused(StatusCode, &'static str),
    /// The API server carries the request out, but the answer is lost.
    Lost,
    /// A watch that ends after this many pieces, with "410 Gone".
    Cut(usize),
    /// No answer, ever.
    Never,
}

impl Proxy {
    /// Starts a proxy, and writes its kubeconfig to `dir`.
    pub(crate) async fn start(client: kube::Client, dir: &Path) -> Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let kubeconfig = dir.join("proxy.kubeconfig");
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "proxy",
            "clusters": [{"name": "proxy", "cluster": {"server": format!("http://{address}")}}],
            "users": [{"name": "nobody", "user": {}}],
            "contexts": [{"name": "proxy", "context": {"cluster": "proxy", "user": "nobody"}}],
        });
        std::fs::write(&kubeconfig, config.to_string())?;
        let shared = Arc::new(Shared {
            client,
            mode: Mutex::new(Mode::Pass),
            random: Mutex::new(StdRng::seed_from_u64(4)),
            disturbed: Mutex::default(),
            stopped: watch::Sender::new(false),
        });
        let router = Router::new().fallback(answer).with_state(Arc::clone(&shared));
        let task = tokio::spawn(async move {
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self {
            shared,
            kubeconfig,
            task,
        })
    }

    pub(crate) fn set(&self, mode: Mode) {
        self.shared.stopped.send_replace(false);
        *self.shared.mode.lock().unwrap_or_else(PoisonError::into_inner) = mode;
    }

    /// Waits until [`Mode::StopAfter`] has held back a write.
    pub(crate) async fn until_stopped(&self) {
        let _ = self.shared.stopped.subscribe().wait_for(|stopped| *stopped).await;
    }

    /// True if a write was held back.
    pub(crate) fn has_stopped(&self) -> bool {
        *self.shared.stopped.borrow()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Shared {
    fn fate(&self, request: &Request<Body>) -> Fate {
        let path = request.uri().path();
        // Writes of the lease and of events have failure handling of their own.
        let relevant = ["/jobs", "/jobsets", "/services", "/persistentvolumeclaims"]
            .iter()
            .any(|kind| path.contains(kind));
        let write = request.method() != Method::GET && relevant;
        let watch = request
            .uri()
            .query()
            .is_some_and(|query| query.contains("watch=true"));
        let mut mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *mode {
            Mode::StopAfter(0) if write => {
                self.stopped.send_replace(true);
                Fate::Never
            }
            Mode::StopAfter(left) if write => {
                *left -= 1;
                Fate::Pass
            }
            Mode::Chaos if watch => match self.one_of(4) {
                0 => Fate::Refused(StatusCode::GONE, "Expired"),
                1 => Fate::Refused(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
                _ => Fate::Cut(self.one_of(20)),
            },
            Mode::Chaos if write => self.of_write_in_chaos(),
            _ => Fate::Pass,
        }
    }

    fn of_write_in_chaos(&self) -> Fate {
        let mut disturbed = self.disturbed.lock().unwrap_or_else(PoisonError::into_inner);
        let fate = match self.one_of(10) {
            _ if *disturbed >= STORM => Fate::Pass,
            0 => Fate::Refused(StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
            1 => Fate::Refused(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
            2 => Fate::Refused(StatusCode::CONFLICT, "Conflict"),
            3 => Fate::Refused(StatusCode::GATEWAY_TIMEOUT, "Timeout"),
            4 => Fate::Lost,
            _ => return Fate::Pass,
        };
        *disturbed = (*disturbed + 1) % (STORM + CALM);
        fate
    }

    fn one_of(&self, outcomes: usize) -> usize {
        let mut random = self.random.lock().unwrap_or_else(PoisonError::into_inner);
        random.random_range(0..outcomes)
    }

    async fn forward(&self, request: Request<Body>) -> Response {
        /// The largest body that the proxy forwards: every object is smaller.
        const LARGEST: usize = 4 << 20;
        let (parts, body) = request.into_parts();
        let body = match axum::body::to_bytes(body, LARGEST).await {
            Ok(body) => kube::client::Body::from(body.to_vec()),
            Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
        };
        match self.client.send(Request::from_parts(parts, body)).await {
            Ok(response) => response.map(Body::new),
            Err(error) => (StatusCode::BAD_GATEWAY, error.to_string()).into_response(),
        }
    }
}

async fn answer(State(shared): State<Arc<Shared>>, mut request: Request<Body>) -> Response {
    let fate = shared.fate(&request);
    // These headers belong to the connection to the proxy, not to the one beyond it.
    for name in [header::HOST, header::CONNECTION, header::ACCEPT_ENCODING] {
        request.headers_mut().remove(name);
    }
    match fate {
        Fate::Pass => shared.forward(request).await,
        Fate::Refused(code, reason) => (
            code,
            [(header::CONTENT_TYPE, "application/json")],
            status(code, reason).to_string(),
        )
            .into_response(),
        Fate::Lost => {
            shared.forward(request).await;
            (StatusCode::BAD_GATEWAY, "the answer is lost").into_response()
        }
        Fate::Cut(pieces) => {
            let (parts, body) = shared.forward(request).await.into_parts();
            let code = StatusCode::GONE;
            let end = json!({"type": "ERROR", "object": status(code, "Expired")});
            let end = futures::stream::once(async move { Ok(Bytes::from(format!("{end}\n"))) });
            let stream = body.into_data_stream().take(pieces).chain(end);
            Response::from_parts(parts, Body::from_stream(stream))
        }
        Fate::Never => std::future::pending().await,
    }
}

fn status(code: StatusCode, reason: &str) -> serde_json::Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "made up by a test", "reason": reason, "code": code.as_u16(),
    })
}
