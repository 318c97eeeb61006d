//! Bodies of requests: how much of them is read and judged at the same time.
//!
//! Whoever reaches the port may send bodies of [`LONGEST_BODY`], and a tenant has the API server send some.
//!
//! Promises: a large body is read once there is room for all of it, and must have come [`COMES_WITHIN`] after that, and a small one at once, which the number of connections
//! bounds; who sends slowly keeps nobody of another address waiting whose bodies are small; an address has half of that room, and each namespace that it names
//! a quarter of that: what is beyond waits for [`PATIENCE`] and is turned away; one that takes much to read waits for others like it before it takes anything else.

use std::error::Error as _;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use axum::body::{Bytes, to_bytes};
use axum::extract::{FromRequest, Request};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use http_body_util::LengthLimitError;
use lockstep_core::extent::Extent;

use super::review;
use super::routes::Admission;
use crate::huge::{self, Huge};
use crate::tls::Door;
use crate::turns::{Turn, Turns};

/// The largest body that is read: an update brings two objects, and the API server takes each up to 3 MiB.
pub(super) const LONGEST_BODY: usize = 7 << 20;
/// Longer bodies are large. Usual ones have a few KiB.
const SMALL_BODY: usize = 64 << 10;
/// How often as much memory as it has itself takes what a body is read into.
const TIMES: u32 = 4;
/// How long a body may take to come. The API server sends it at once.
const COMES_WITHIN: Duration = Duration::from_secs(2);
/// How long one waits for others of its namespace to be judged.
const PATIENCE: Duration = Duration::from_secs(2);
/// KiB for large bodies, and for small ones; and for what these are read into.
const LARGE_BODIES: (u32, u32) = (64 << 10, 64 << 10);
const SMALL_BODIES: (u32, u32) = (32 << 10, 32 << 10);

/// Who has sent a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sender(pub(super) IpAddr);

/// Room for all bodies.
pub(super) struct Room {
    large: OfSize,
    small: OfSize,
    /// Who takes much to read.
    one_at_a_time: Turns,
}

/// Room for bodies of one size, in KiB.
struct OfSize {
    /// By address.
    bodies: Turns,
    /// By address and namespace, for the same bodies: whoever reaches the port may name any namespace.
    of_namespaces: Turns,
    /// By the same, for what they are read into.
    read: Turns,
}

impl OfSize {
    fn of((bodies, read): (u32, u32)) -> Self {
        Self {
            bodies: Turns::new(bodies, bodies / 2),
            of_namespaces: Turns::new(bodies, bodies / 8),
            read: Turns::new(read, read / 4),
        }
    }
}

impl Default for Room {
    fn default() -> Self {
        Self {
            large: OfSize::of(LARGE_BODIES),
            small: OfSize::of(SMALL_BODIES),
            one_at_a_time: Turns::new(1, 1),
        }
    }
}

/// A body, with the room that it takes until it is dropped.
pub(super) struct Question {
    pub(super) body: Bytes,
    _room: [Turn; 3],
    _large: Option<(Turn, Huge)>,
}

impl FromRequest<Admission> for Question {
    type Rejection = Response;

    async fn from_request(request: Request, admission: &Admission) -> Result<Self, Response> {
        let sender = request.extensions().get::<Sender>();
        let sender = sender.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |Sender(address)| *address);
        let declared = request.headers().get(header::CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse().ok());
        let bytes = declared.unwrap_or(LONGEST_BODY);
        if bytes > LONGEST_BODY {
            return Err(too_long());
        }
        let Room {
            large,
            small,
            one_at_a_time,
        } = &*admission.room;
        let sender = Door::name(sender);
        let (room, taken, body) = if bytes > SMALL_BODY {
            let taken = large.bodies.take(&sender, kib(bytes)).await;
            (large, taken, come(request, bytes).await?)
        } else {
            // There are no more of them than connections.
            let body = come(request, bytes).await?;
            (small, small.bodies.take(&sender, kib(bytes)).await, body)
        };
        let whose = format!("{sender} {}", review::namespace(&body));
        let of_namespace = room.of_namespaces.take(&whose, kib(body.len()));
        let of_namespace = tokio::time::timeout(PATIENCE, of_namespace).await;
        let of_namespace = of_namespace.map_err(|_| crowded())?;
        // Judged one at a time: each may take 50 MB.
        let large = if Extent::of_text(&body).exceeds(huge::FROM) {
            Some((one_at_a_time.take(&whose, 1).await, huge::turn().await))
        } else {
            None
        };
        let read = room.read.take(&whose, kib(body.len()).saturating_mul(TIMES));
        let read = if large.is_some() {
            // Others wait for this one.
            tokio::time::timeout(PATIENCE, read)
                .await
                .map_err(|_| crowded())?
        } else {
            read.await
        };
        Ok(Self {
            body,
            _room: [taken, of_namespace, read],
            _large: large,
        })
    }
}

/// The body, once it has come.
async fn come(request: Request, most: usize) -> Result<Bytes, Response> {
    let body = tokio::time::timeout(COMES_WITHIN, to_bytes(request.into_body(), most)).await;
    body.map_err(|_| late())?.map_err(|error| unread(&error))
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX)
}

fn late() -> Response {
    (StatusCode::REQUEST_TIMEOUT, "the body did not come in time").into_response()
}

fn too_long() -> Response {
    let message = format!("the body is longer than {LONGEST_BODY} bytes");
    (StatusCode::PAYLOAD_TOO_LARGE, message).into_response()
}

fn unread(error: &axum::Error) -> Response {
    match error.source() {
        Some(source) if source.is::<LengthLimitError>() => too_long(),
        _ => (StatusCode::BAD_REQUEST, "the body did not come whole").into_response(),
    }
}

fn crowded() -> Response {
    let message = "too many objects of this namespace are being reviewed; try again";
    (StatusCode::TOO_MANY_REQUESTS, message).into_response()
}

#[cfg(test)]
mod tests;
