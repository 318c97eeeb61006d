//! Bodies of requests: how much of them is read and judged at the same time.
//!
//! Whoever reaches the port may send bodies of [`LONGEST_BODY`], and a tenant has the API server send some.
//!
//! Promises: a body is read once there is room for all of it, and must have come [`COMES_WITHIN`] after that; an address has half of that room, and a namespace half of what
//! an address has: what is beyond that is turned away at once; a body that is small waits for no large one; one that takes much to read waits for others like it
//! before it takes anything else, and of what it is read into a namespace has its part as well.

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
use crate::turns::{Turn, Turns};

/// The largest body that is read: an update brings two objects, and the API server takes each up to 3 MiB.
pub(super) const LONGEST_BODY: usize = 7 << 20;
/// Longer bodies are large. Usual ones have a few KiB.
const SMALL_BODY: usize = 64 << 10;
/// How often as much memory as it has itself takes what a body is read into.
const TIMES: u32 = 4;
/// How long a body may take to come. The API server sends it at once.
const COMES_WITHIN: Duration = Duration::from_secs(4);
/// Larger reviews are judged one at a time: each may take 100 MB.
const SMALL: Extent = Extent {
    objects: 2_048,
    elements: 16_384,
};
/// KiB for large bodies, and for small ones; and for what these are read into.
const LARGE_BODIES: (u32, u32) = (64 << 10, 64 << 10);
const SMALL_BODIES: (u32, u32) = (8 << 10, 16 << 10);

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
    /// By namespace, for the same bodies.
    of_namespaces: Turns,
    /// By namespace, for what they are read into.
    read: Turns,
}

impl OfSize {
    fn of((bodies, read): (u32, u32)) -> Self {
        Self {
            bodies: Turns::new(bodies, bodies / 2),
            of_namespaces: Turns::new(bodies, bodies / 4),
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
    _large: Option<Turn>,
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
        let room = if bytes > SMALL_BODY { large } else { small };
        let taken = room.bodies.take(&sender.to_string(), kib(bytes)).await;
        let body = to_bytes(request.into_body(), bytes);
        let body = tokio::time::timeout(COMES_WITHIN, body).await;
        let body = body.map_err(|_| late())?.map_err(|error| unread(&error))?;
        let namespace = review::namespace(&body);
        let of_namespace = room.of_namespaces.try_take(&namespace, kib(body.len()));
        let of_namespace = of_namespace.ok_or_else(crowded)?;
        let large = if Extent::of_text(&body).exceeds(SMALL) {
            Some(one_at_a_time.take(&namespace, 1).await)
        } else {
            None
        };
        let weight = kib(body.len()).saturating_mul(TIMES);
        let read = room.read.take(&namespace, weight).await;
        Ok(Self {
            body,
            _room: [taken, of_namespace, read],
            _large: large,
        })
    }
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
    let message = "too many large objects of this namespace are being reviewed; try again";
    (StatusCode::TOO_MANY_REQUESTS, message).into_response()
}

#[cfg(test)]
mod tests;
