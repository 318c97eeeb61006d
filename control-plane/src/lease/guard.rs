//! The Lease as its manager reads and writes it.
//!
//! `kube-lease-manager` compares times that other machines wrote with the wall clock of this one, and writes without saying on which version of the
//! Lease. Behind this guard neither does harm. Promises:
//! - A write of the manager changes a Lease only while this replica holds it, or takes it while nobody does. It is made on exactly the version of
//!   which that is true. Any other is left undone, and answered with the Lease as it is: the manager reads after each write, and sees whose it is.
//! - To the manager our Lease was renewed as long ago as the monotonic clock says, and that of another just now. So it renews ours in time and lets
//!   others have theirs, whatever the wall clocks say and however they are set.

use std::sync::Arc;

use http::header::CONTENT_LENGTH;
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use kube::api::Api;
use kube::client::Body;
use serde::Serialize;
use serde_json::{Map, Value, json};
use thiserror::Error;
use tokio::sync::watch;
use tokio::time::Instant;
use tower::BoxError;

use super::{RACES, holder};
use crate::settings::LeaderElection;

/// Others write the Lease again and again.
#[derive(Debug, Error)]
#[error("others have written the lease between each reading and the write on top of it")]
struct Raced;

struct Guard {
    client: Client,
    leases: Api<Lease>,
    name: String,
    identity: String,
    renewed: watch::Sender<Instant>,
}

/// A client for the manager of this Lease alone, and when the manager last wrote it: before it was sent, so that nobody has seen it earlier.
pub(super) fn guarded(
    client: &Client,
    election: &LeaderElection,
    identity: &str,
) -> (Client, watch::Receiver<Instant>) {
    let (renewed, receiver) = watch::channel(Instant::now());
    let guard = Arc::new(Guard {
        client: client.clone(),
        leases: Api::namespaced(client.clone(), &election.namespace),
        name: election.lease.clone(),
        identity: identity.to_owned(),
        renewed,
    });
    let service = tower::service_fn(move |request| {
        let guard = Arc::clone(&guard);
        async move { guard.answer(request).await }
    });
    (Client::new(service, &election.namespace), receiver)
}

impl Guard {
    async fn answer(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        match *request.method() {
            Method::GET => self.read(request).await,
            Method::PATCH => self.write(request).await,
            _ => Ok(self.client.send(request).await?),
        }
    }

    async fn read(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let answer = self.client.send(request).await?;
        if !answer.status().is_success() {
            return Ok(answer);
        }
        let mut lease: Lease = serde_json::from_slice(&answer.into_body().collect().await?.to_bytes())?;
        let is_ours = self.is_ours(&lease);
        if let Some(time) = lease.spec.as_mut().and_then(|spec| spec.renew_time.as_mut()) {
            let now = Timestamp::now();
            let renewed = is_ours.then(|| now.checked_sub(self.renewed.borrow().elapsed()).ok());
            *time = MicroTime(renewed.flatten().unwrap_or(now));
        }
        found(&lease)
    }

    async fn write(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (mut head, body) = request.into_parts();
        head.headers.remove(CONTENT_LENGTH);
        let mut patch: Map<String, Value> = serde_json::from_slice(&body.collect().await?.to_bytes())?;
        for _ in 0..=RACES {
            if let Some(lease) = self.leases.get_opt(&self.name).await? {
                if !self.is_ours(&lease) && !self.takes(&patch, &lease) {
                    tracing::debug!(holder = holder(&lease), "the lease is not ours: left as it is");
                    return found(&lease);
                }
                let metadata = patch.entry("metadata").or_insert_with(|| json!({}));
                if let Some(metadata) = metadata.as_object_mut() {
                    metadata.insert(
                        "resourceVersion".to_owned(),
                        json!(lease.metadata.resource_version),
                    );
                }
            }
            let body = Body::from(serde_json::to_vec(&patch)?);
            let asked = Instant::now();
            let answer = self.client.send(Request::from_parts(head.clone(), body)).await?;
            if answer.status() == StatusCode::CONFLICT {
                continue;
            }
            if answer.status().is_success() {
                self.renewed.send_replace(asked);
            }
            return Ok(answer);
        }
        // Not a conflict: the manager panics where it is told of one while it gives the Lease up.
        Err(Raced.into())
    }

    fn is_ours(&self, lease: &Lease) -> bool {
        holder(lease) == Some(&self.identity)
    }

    /// Whether it makes a Lease ours that nobody holds.
    fn takes(&self, patch: &Map<String, Value>, lease: &Lease) -> bool {
        let becomes = patch.get("spec").and_then(|spec| spec.get("holderIdentity"));
        holder(lease).is_none() && becomes.and_then(Value::as_str) == Some(&self.identity)
    }
}

fn found(lease: &impl Serialize) -> Result<Response<Body>, BoxError> {
    Ok(Response::new(Body::from(serde_json::to_vec(lease)?)))
}
