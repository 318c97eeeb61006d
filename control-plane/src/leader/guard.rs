//! The Lease as its manager reads and writes it.
//!
//! `kube-lease-manager` compares times that other machines wrote with the local wall clock, and
//! writes without naming a version of the Lease. This guard makes both harmless. Promises:
//! - The manager's write changes a Lease only while this replica holds it, or takes it while no
//!   replica does. The write names the version for which that is true. Any other write is not sent,
//!   and is answered with the current Lease: the manager reads after each write, and sees the
//!   holder. If there is no Lease, nothing is written, because a replica that wants to lead creates
//!   it first.
//! - The manager sees our Lease as renewed at the time by the monotonic clock, and another's as
//!   renewed just now. So it renews ours in time and respects others, regardless of wall clocks.
//! - It writes nothing on a version below one that it has read. Then the store was restored from a
//!   backup, and a write could hide that from other readers.
//! - While this replica leads, the manager sees no failure. Its pauses after failures grow up to
//!   half a minute and never shrink, so a few old failures would delay a due renewal. The guard
//!   retries instead, as often as a leader renews.
//!
//! Retries never prolong a leadership. Each attempt to write reads the holder again and has a time
//! of its own, so that others see the Lease change. A leader counts the time since its last
//! successful write (`expiry`). Retries begin after that write and end after the renew deadline. By
//! then the leader has stopped, before the Lease expires for others.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Limited};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::Api;
use kube::client::Body;
use kube::core::Status;
use serde::Serialize;
use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::BoxError;

use super::expiry::{HighestVersion, time_to_renew};
use super::{RACES, WentBack, holder};
use crate::config::settings::LeaderElection;

/// Other clients keep writing the Lease.
#[derive(Debug, Error)]
#[error("other clients wrote the lease between each read and the write that followed")]
struct Raced;

/// The API server refuses the request, usually with a reason.
#[derive(Debug, Error)]
#[error("{status}{}{message}", if .message.is_empty() { "" } else { ": " })]
struct Refused {
    status: StatusCode,
    message: String,
}

/// No attempt begins this close to the end.
const LAST: Duration = Duration::from_millis(100);
/// The most bytes of a refusal that are read, far more than the API server sends.
const LONGEST_REFUSAL: usize = 64 << 10;

/// The API server did not answer in time.
#[derive(Debug, Error)]
#[error("no answer in time")]
struct Silent;

struct Guard {
    client: Client,
    leases: Api<Lease>,
    name: String,
    identity: String,
    renewed: watch::Sender<Instant>,
    /// Of the manager's own reads. It sends one request at a time.
    highest: Mutex<HighestVersion>,
    went_back: watch::Sender<Option<WentBack>>,
    pace: RetryPolicy,
}

/// What the guard observes of the Lease.
pub(super) struct LeaseSignals {
    /// The time of the manager's last write. It is taken before the request, so no replica has seen
    /// the write earlier.
    pub(super) renewed: watch::Receiver<Instant>,
    /// Set when the version has fallen.
    pub(super) went_back: watch::Receiver<Option<WentBack>>,
}

/// How failed requests are retried.
struct RetryPolicy {
    /// How long in total. A leader without a renewal has stopped by then.
    limit: Duration,
    /// The timeout of one request, which leaves time for others. An attempt to write takes two
    /// requests.
    timeout: Duration,
    /// The pause between two attempts.
    pause: Duration,
}

impl RetryPolicy {
    fn new(election: &LeaderElection) -> Self {
        let limit = time_to_renew(election);
        Self {
            limit,
            timeout: limit / 3,
            pause: election.retry.min(limit / 4),
        }
    }
}

/// A client for only the manager of this Lease, and what it observes of the Lease.
pub(super) fn guarded(client: &Client, election: &LeaderElection, identity: &str) -> (Client, LeaseSignals) {
    let (renewed, seen_renewed) = watch::channel(Instant::now());
    let (went_back, seen_back) = watch::channel(None);
    let guard = Arc::new(Guard {
        client: client.clone(),
        leases: Api::namespaced(client.clone(), &election.namespace),
        name: election.lease.clone(),
        identity: identity.to_owned(),
        renewed,
        highest: Mutex::default(),
        went_back,
        pace: RetryPolicy::new(election),
    });
    let seen = LeaseSignals {
        renewed: seen_renewed,
        went_back: seen_back,
    };
    let service = tower::service_fn(move |request| {
        let guard = Arc::clone(&guard);
        async move { guard.answer(request).await }
    });
    (Client::new(service, &election.namespace), seen)
}

impl Guard {
    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (mut head, body) = request.into_parts();
        head.headers.remove(CONTENT_LENGTH);
        let body = body.collect().await?.to_bytes();
        let until = Instant::now() + self.pace.limit;
        let left = || until.saturating_duration_since(Instant::now());
        loop {
            let answer = within(left(), self.attempt(&head, &body)).await;
            let Err(error) = answer else {
                return answer;
            };
            let left = left();
            if left <= LAST {
                // A failure is not passed on earlier, because until then this replica may still
                // lead.
                tokio::time::sleep(left).await;
                return Err(error);
            }
            tracing::warn!(method = %head.method, %error, "request for the lease failed, will retry");
            tokio::time::sleep(self.pace.pause.min(left / 2)).await;
        }
    }

    async fn attempt(&self, head: &Parts, body: &Bytes) -> Result<Response<Body>, BoxError> {
        let answer = match head.method {
            Method::GET => self.read(head, body).await,
            Method::PATCH => self.write(head, body).await,
            _ => self.send(head, body.clone()).await,
        }?;
        if is_for_manager(answer.status()) {
            return Ok(answer);
        }
        Err(self.refused(answer).await.into())
    }

    /// The error for a refusal, with the API server's reason if it gives one.
    async fn refused(&self, answer: Response<Body>) -> Refused {
        let status = answer.status();
        let body = Limited::new(answer.into_body(), LONGEST_REFUSAL).collect();
        let body = within(self.pace.timeout, body).await.ok();
        let refusal = body.and_then(|body| serde_json::from_slice::<Status>(&body.to_bytes()).ok());
        let message = refusal.map(|refusal| refusal.message).unwrap_or_default();
        Refused { status, message }
    }

    async fn send(&self, head: &Parts, body: impl Into<Bytes>) -> Result<Response<Body>, BoxError> {
        let request = Request::from_parts(head.clone(), Body::from(body.into()));
        within(self.pace.timeout, self.client.send(request)).await
    }

    async fn read(&self, head: &Parts, body: &Bytes) -> Result<Response<Body>, BoxError> {
        let answer = self.send(head, body.clone()).await?;
        if !answer.status().is_success() {
            return Ok(answer);
        }
        let mut lease: Lease = {
            let body = within(self.pace.timeout, answer.into_body().collect()).await?;
            serde_json::from_slice(&body.to_bytes())?
        };
        self.goes_back(&lease);
        let is_ours = self.is_ours(&lease);
        if let Some(time) = lease.spec.as_mut().and_then(|spec| spec.renew_time.as_mut()) {
            let now = Timestamp::now();
            let renewed = is_ours.then(|| now.checked_sub(self.renewed.borrow().elapsed()).ok());
            *time = MicroTime(renewed.flatten().unwrap_or(now));
        }
        found(&lease)
    }

    async fn write(&self, head: &Parts, body: &Bytes) -> Result<Response<Body>, BoxError> {
        let mut patch: Map<String, Value> = serde_json::from_slice(body)?;
        for _ in 0..=RACES {
            let Some(lease) = within(self.pace.timeout, self.leases.get_opt(&self.name)).await? else {
                return self.gone();
            };
            if self.goes_back(&lease) {
                return found(&lease);
            }
            if !self.is_ours(&lease) && !self.takes(&patch, &lease) {
                tracing::debug!(holder = holder(&lease), "the lease is not ours, left unchanged");
                return found(&lease);
            }
            let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
            if let Some(metadata) = metadata.as_object_mut() {
                metadata.insert(
                    "resourceVersion".to_owned(),
                    json!(lease.metadata.resource_version),
                );
            }
            restamp(&mut patch);
            let body = serde_json::to_vec(&patch)?;
            let asked = Instant::now();
            let answer = self.send(head, body).await?;
            if answer.status() == StatusCode::CONFLICT {
                continue;
            }
            if answer.status().is_success() {
                self.renewed.send_replace(asked);
            }
            return Ok(answer);
        }
        // This is never a conflict, because the manager panics on one while it gives the Lease up.
        Err(Raced.into())
    }

    /// The answer to a write if there is no Lease. Without a version, the write could hit a Lease
    /// that is created in between.
    fn gone(&self) -> Result<Response<Body>, BoxError> {
        tracing::debug!("the lease is gone: nothing is written");
        let status = Status::failure(&format!("leases {:?} not found", self.name), "NotFound");
        let code = StatusCode::NOT_FOUND;
        let body = serde_json::to_vec(&status.with_code(code.as_u16()))?;
        Ok(Response::builder().status(code).body(Body::from(body))?)
    }

    /// Compares the Lease with the newest one read so far. If it is older, it signals that and
    /// returns true.
    fn goes_back(&self, lease: &Lease) -> bool {
        let mut highest = self.highest.lock().unwrap_or_else(PoisonError::into_inner);
        let fallen = highest.see(lease).err();
        if fallen.is_some() {
            self.went_back.send_replace(fallen);
        }
        fallen.is_some()
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        holder(lease) == Some(&self.identity)
    }

    /// True if the patch takes a Lease without a holder for this replica.
    fn takes(&self, patch: &Map<String, Value>, lease: &Lease) -> bool {
        let becomes = patch.get("spec").and_then(|spec| spec.get("holderIdentity"));
        holder(lease).is_none() && becomes.and_then(Value::as_str) == Some(&self.identity)
    }
}

/// Gives every write that does not give the Lease up a renewal time of its own. An earlier write
/// may have succeeded without an answer. With the same time, others would see no renewal now, while
/// this replica counts from now.
fn restamp(patch: &mut Map<String, Value>) {
    let Some(spec) = patch.get_mut("spec").and_then(Value::as_object_mut) else {
        return;
    };
    if !spec.get("renewTime").is_some_and(Value::is_null) {
        spec.insert("renewTime".to_owned(), json!(MicroTime(Timestamp::now())));
    }
}

/// True if a retry would not help, because the write is done, or the Lease is not what the manager
/// expects.
fn is_for_manager(status: StatusCode) -> bool {
    status.is_success() || matches!(status, StatusCode::NOT_FOUND | StatusCode::CONFLICT)
}

/// The result of a request, if it comes within this time.
async fn within<T, E: Into<BoxError>>(
    time: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, BoxError> {
    let answer = tokio::time::timeout(time, asked).await;
    answer.map_err(|_| Silent)?.map_err(Into::into)
}

fn found(lease: &impl Serialize) -> Result<Response<Body>, BoxError> {
    Ok(Response::new(Body::from(serde_json::to_vec(lease)?)))
}
