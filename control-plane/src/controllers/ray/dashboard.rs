//! Ray's dashboard over HTTP: its Jobs REST API, and the Ray session that it belongs to.
//!
//! Promises: a question is answered within [`TIME_OUT`], even if it takes several requests. Any
//! error counts as "not reached", except an answer that denies access. At most 1 MiB of an answer
//! is read, and 64 KiB of the HTTP around it. The part that is kept fits into a status. Requests go
//! to the given address, or through the proxy of the command line. They follow no redirect, and use
//! no proxy of the environment.

use std::net::SocketAddr;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use jiff::Timestamp;
use lockstep_core::ray::job::{Ray, RayInfo};
use serde::Deserialize;
use serde_json::Value;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::net::TcpStream;

/// How long one question may take.
const TIME_OUT: Duration = Duration::from_secs(5);
/// The most characters that are kept of the message of a job that has ended. Ray's own messages
/// have up to 20,000 of the driver's output.
const LONGEST_MESSAGE: usize = 32_000;
/// The same for a job that runs, whose message may be another with each answer.
const LONGEST_RUNNING_MESSAGE: usize = 1_000;
/// The most characters that are kept of a word, such as a status or the name of a session.
const LONGEST_WORD: usize = 256;
/// The longest answer that is read.
const LONGEST: usize = 1 << 20;
/// The most bytes around an answer: its head, heads of answers before it, and the framing of its
/// parts.
const LONGEST_HEAD: usize = 64 << 10;
/// Status codes that do not refuse a request for good.
const PASSING: [StatusCode; 3] = [
    StatusCode::REQUEST_TIMEOUT,
    StatusCode::TOO_EARLY,
    StatusCode::TOO_MANY_REQUESTS,
];

/// Why the dashboard gave no usable answer.
#[derive(Debug, Error)]
pub(super) enum DashboardError {
    #[error("no answer within {} s", TIME_OUT.as_secs())]
    Late,
    #[error("the head has no pod that can be asked")]
    Nowhere,
    #[error("cannot connect: {0}")]
    Connect(std::io::Error),
    #[error(transparent)]
    Http(#[from] hyper::Error),
    #[error("the request is malformed: {0}")]
    Request(#[from] http::Error),
    #[error("the answer is too long, or ends early: {0}")]
    Body(Box<dyn std::error::Error + Send + Sync>),
    #[error("the answer is not what is expected: {0}")]
    Syntax(#[from] serde_json::Error),
    #[error("{status}: {text}")]
    Refused { status: StatusCode, text: String },
}

impl DashboardError {
    /// Why Ray will never accept the request: it has read and refused it. A known id is no such
    /// reason, and overload of the dashboard or of a proxy passes.
    pub(super) fn refusal(&self) -> Option<&str> {
        match self {
            Self::Refused { status, text }
                if status.is_client_error()
                    && !PASSING.contains(status)
                    && !text.contains("already exists") =>
            {
                Some(text)
            }
            _ => None,
        }
    }
}

/// The address and the name of a dashboard.
#[derive(Clone, Copy)]
pub(super) struct DashboardAddress<'a> {
    /// The address of the head's pod, if there is one to ask.
    pub(super) at: Option<SocketAddr>,
    /// Its host and port, as users know them.
    pub(super) name: &'a str,
}

/// Asks dashboards.
pub(super) struct Dashboards {
    /// Host and port of an HTTP proxy to their pods. Without one they are reached at their own
    /// addresses.
    pub(super) proxy: Option<String>,
}

#[derive(Deserialize)]
struct Version {
    #[serde(default)]
    session_name: String,
}

#[derive(Deserialize)]
struct Info {
    status: String,
    message: Option<String>,
    /// Milliseconds since the Unix epoch, like `end_time`.
    start_time: Option<i64>,
    end_time: Option<i64>,
}

impl Dashboards {
    /// The state of a job, from the dashboard at `address`.
    pub(super) async fn ask(&self, address: DashboardAddress<'_>, id: &str) -> Ray {
        let looked = tokio::time::timeout(TIME_OUT, self.read_job(address, id)).await;
        match looked.unwrap_or(Err(DashboardError::Late)) {
            Ok(ray) => ray,
            Err(error) => {
                tracing::debug!(address = address.name, id, %error, "the dashboard is out of reach");
                match error {
                    DashboardError::Refused { status, .. } => Ray::Denied(status.to_string()),
                    _ => Ray::Unreachable,
                }
            }
        }
    }

    async fn read_job(&self, address: DashboardAddress<'_>, id: &str) -> Result<Ray, DashboardError> {
        let job = match self.get(address, &format!("/api/jobs/{id}")).await? {
            Some(text) => Some(read(&text)?),
            None => None,
        };
        // This comes after the job's state, to detect a head that was restarted in between and does
        // not know the job.
        let session = match self.get(address, "/api/version").await? {
            Some(version) => cut(
                serde_json::from_slice::<Version>(&version)?.session_name,
                LONGEST_WORD,
            ),
            // KubeRay never asks for it, and a substitute for a dashboard may lack it. Then
            // sessions cannot be distinguished.
            None => String::new(),
        };
        Ok(Ray::Reached { session, job })
    }

    /// Submits a job. Ray refuses a known id.
    pub(super) async fn submit(
        &self,
        address: DashboardAddress<'_>,
        body: &Value,
    ) -> Result<(), DashboardError> {
        let body = serde_json::to_vec(body)?;
        self.send(address, Method::POST, "/api/jobs/", body)
            .await
            .map(drop)
    }

    /// Asks for a job to be stopped.
    pub(super) async fn stop(&self, address: DashboardAddress<'_>, id: &str) -> Result<(), DashboardError> {
        let path = format!("/api/jobs/{id}/stop");
        self.send(address, Method::POST, &path, Vec::new())
            .await
            .map(drop)
    }

    async fn get(&self, address: DashboardAddress<'_>, path: &str) -> Result<Option<Bytes>, DashboardError> {
        match self.send(address, Method::GET, path, Vec::new()).await {
            Ok(text) => Ok(Some(text)),
            Err(DashboardError::Refused { status, .. }) if status == StatusCode::NOT_FOUND => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn send(
        &self,
        address: DashboardAddress<'_>,
        method: Method,
        path: &str,
        body: Vec<u8>,
    ) -> Result<Bytes, DashboardError> {
        let at = address.at.ok_or(DashboardError::Nowhere)?;
        let answer = async {
            let uri = match &self.proxy {
                // The whole address goes to the proxy (RFC 9112, 3.2.2).
                Some(_) => format!("http://{at}{path}"),
                None => path.to_owned(),
            };
            let request = Request::builder()
                .method(method)
                .uri(Uri::try_from(uri).map_err(http::Error::from)?)
                .header(header::HOST, address.name)
                .header(header::CONTENT_TYPE, "application/json")
                .body(Full::new(Bytes::from(body)))?;
            let stream = match &self.proxy {
                Some(proxy) => TcpStream::connect(proxy.as_str()).await,
                None => TcpStream::connect(at).await,
            };
            let stream = stream.map_err(DashboardError::Connect)?;
            let (mut sender, connection) = http1::handshake(TokioIo::new(bounded(stream))).await?;
            let exchange = async {
                let response = sender.send_request(request).await?;
                whole(response).await
            };
            let mut exchange = std::pin::pin!(exchange);
            // The connection runs here, and is dropped after the exchange.
            tokio::select! {
                answer = &mut exchange => answer,
                ended = connection => match ended {
                    Ok(()) => exchange.await,
                    Err(error) => Err(error.into()),
                },
            }
        };
        let (status, text) = tokio::time::timeout(TIME_OUT, answer)
            .await
            .map_err(|_| DashboardError::Late)??;
        if status.is_success() {
            return Ok(text);
        }
        let text = String::from_utf8_lossy(&text);
        Err(DashboardError::Refused {
            status,
            text: text.chars().take(500).collect(),
        })
    }
}

/// A stream that ends after the most bytes that one answer may take. Otherwise an HTTP client reads
/// without a limit before an answer and between its parts, possibly all in one step.
fn bounded(stream: TcpStream) -> impl AsyncRead + AsyncWrite + Unpin {
    let (from, to) = stream.into_split();
    tokio::io::join(from.take((LONGEST + LONGEST_HEAD) as u64), to)
}

async fn whole(response: Response<Incoming>) -> Result<(StatusCode, Bytes), DashboardError> {
    let status = response.status();
    let body = Limited::new(response.into_body(), LONGEST).collect().await;
    Ok((status, body.map_err(DashboardError::Body)?.to_bytes()))
}

fn read(text: &[u8]) -> Result<RayInfo, DashboardError> {
    let info: Info = serde_json::from_slice(text)?;
    let time = |millis: Option<i64>| Timestamp::from_millisecond(millis.filter(|millis| *millis > 0)?).ok();
    let mut info = RayInfo {
        status: cut(info.status, LONGEST_WORD),
        message: info.message.unwrap_or_default(),
        start: time(info.start_time),
        end: time(info.end_time),
    };
    let most = match info.has_ended() {
        true => LONGEST_MESSAGE,
        false => LONGEST_RUNNING_MESSAGE,
    };
    info.message = cut(info.message, most);
    Ok(info)
}

/// Truncates a text that is too long.
fn cut(mut text: String, most: usize) -> String {
    if let Some((end, _)) = text.char_indices().nth(most) {
        text.truncate(end);
    }
    text
}

#[cfg(test)]
mod tests {
    //! A tenant's program may pose as a dashboard, and return anything.

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    proptest! {
        #[test]
        fn any_bytes_are_an_error_or_an_answer_of_bounded_size(
            garbage in prop::collection::vec(any::<u8>(), 0..200),
            status in "\\PC{0,8}",
            message in "\\PC{0,8}",
            times in any::<(i64, Option<i64>)>(),
            many in 0..5000_usize,
            damage in (any::<prop::sample::Index>(), any::<u8>()),
        ) {
            let answer = json!({
                "status": status.repeat(many),
                "message": message.repeat(many),
                "start_time": times.0,
                "end_time": times.1,
                "entrypoint": {"of": ["a", "later", "version"]},
            });
            let whole = serde_json::to_vec(&answer).unwrap();
            let mut damaged = whole.clone();
            damaged[damage.0.index(whole.len())] = damage.1;
            for text in [&garbage, &damaged, &whole] {
                if let Ok(info) = read(text) {
                    prop_assert!(info.status.chars().count() <= LONGEST_WORD);
                    prop_assert!(info.message.chars().count() <= LONGEST_MESSAGE);
                }
                let _ = serde_json::from_slice::<Version>(text);
            }
            let info = read(&whole).unwrap();
            prop_assert!(status.repeat(many).starts_with(&info.status));
            prop_assert!(message.repeat(many).starts_with(&info.message));
            // At the edges of the calendar.
            let millis = |time: Option<Timestamp>| time.map(Timestamp::as_millisecond);
            prop_assert!(millis(info.start).is_none_or(|start| start == times.0 && start > 0));
            prop_assert!(millis(info.end).is_none_or(|end| Some(end) == times.1 && end > 0));
        }
    }

    #[test]
    fn the_message_of_a_job_that_runs_is_short() {
        let kept = |status: &str| {
            let answer = json!({"status": status, "message": "x".repeat(50_000)});
            read(&serde_json::to_vec(&answer).unwrap()).unwrap().message.len()
        };
        assert_eq!(kept("RUNNING"), LONGEST_RUNNING_MESSAGE);
        assert_eq!(kept("FAILED"), LONGEST_MESSAGE);
    }

    #[tokio::test]
    async fn a_dashboard_that_never_answers_is_not_read_for_long() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = DashboardAddress {
            at: listener.local_addr().ok(),
            name: "head:8265",
        };
        let hints = "HTTP/1.1 103 Early Hints\r\nLink: abc\r\n\r\n".repeat(1_000);
        let head = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            while tokio::io::AsyncWriteExt::write_all(&mut stream, hints.as_bytes())
                .await
                .is_ok()
            {}
        };
        let dashboards = Dashboards { proxy: None };
        let (asked, ()) = tokio::join!(dashboards.get(address, "/api/version"), head);
        assert!(matches!(asked, Err(DashboardError::Http(_))), "{asked:?}");
    }
}
