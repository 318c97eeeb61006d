//! Bodies of requests: limits on how much is read and reviewed at the same time.
//!
//! Anyone who reaches the port may send bodies of [`LONGEST_BODY`], and a tenant can make the API
//! server send some.
//!
//! Promises:
//! - A body is read as it arrives, and waits for no other one. It must arrive within
//!   [`ARRIVAL_TIMEOUT`].
//! - If memory is short, the slowest bodies are refused first, then those that wait for their
//!   review, from the address that holds most ([`Arrivals`]).
//! - Large bodies take no memory from small ones.
//! - Bodies of one address take at most half of the memory, and those of each namespace that it
//!   names an eighth. A body beyond that waits for [`TURN_TIMEOUT`] and is refused then.
//! - Huge bodies, which need much memory when they are read, take turns before they take anything
//!   else: first among those of their own address, then among all addresses.
//! - Bodies of API servers ([`super::api_servers::ApiServers`]) have priority. Other addresses take
//!   no arrival memory from them, and leave them half of the memory for reading. A huge body of an
//!   API server waits for at most one huge body of another address.
//! - While half of all memory is in use, other addresses have one large body at a time.

use std::error::Error;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::BytesMut;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use lockstep_core::common::extent::Extent;
use lockstep_process::turns::{Turn, Turns};
use tokio::time::timeout;

use super::api_servers::{ApiServers, SenderClass};
use super::arrivals::{Arrival, Arrivals};
use super::review;
use crate::k8s::huge_lock::{self, Huge};
use crate::k8s::memory_limit;
use crate::net::tls::ConnectionLimit;

/// Longest body, in bytes. An update has two objects, and the API server accepts up to 3 MiB each.
pub(super) const LONGEST_BODY: usize = 7 << 20;
/// Longer bodies are large. Most have a few KiB.
const SMALL_BODY: usize = 64 << 10;
/// The memory for a body's parsed form, as a multiple of its length.
const TIMES: u32 = 4;
/// How long a body may take to arrive. The API server sends it at once.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a body waits for other bodies of its namespace.
const TURN_TIMEOUT: Duration = Duration::from_secs(2);
/// Most KiB for large bodies, and for small ones. Their parsed forms may take as much again.
const LARGE_BODIES: u32 = 64 << 10;
const SMALL_BODIES: u32 = 32 << 10;
/// The share of memory for each of them, as a divisor, if that is less.
const PARTS_LARGE: usize = 8;
const PARTS_SMALL: usize = 16;
/// More than fits into memory, since arrivals are limited before.
const ENOUGH: u32 = u32::MAX >> 4;

/// The address that a request comes from.
#[derive(Clone, Copy, Debug)]
pub(super) struct PeerAddress(pub(super) IpAddr);

/// The memory for all bodies, and the turns to read and review them.
pub(super) struct BodyLimits {
    large: SizeLimits,
    small: SizeLimits,
    /// Turns of huge bodies: one of each address and namespace, and then one of each address, enter
    /// the common line.
    huge: Turns,
    one_at_a_time: Turns,
    /// While memory is short, one large body of addresses that are not API servers.
    while_short: Turns,
    /// One huge body of addresses that are not API servers enters the common line.
    one_of_others: Turns,
}

/// Limits for bodies of one size, in KiB.
struct SizeLimits {
    /// For bodies until they are reviewed.
    arrivals: Arrivals,
    /// By address, for bodies that have arrived.
    of_senders: Turns,
    /// By address and namespace, for the same bodies. Anyone who reaches the port may name any
    /// namespace.
    of_namespaces: Turns,
    /// By the same, for their parsed forms.
    read: Turns,
    /// The part of that for addresses that are not API servers.
    read_of_others: Turns,
}

impl SizeLimits {
    /// Limits of `most` KiB, or of `bytes` bytes if that is less.
    fn of(most: u32, bytes: usize) -> Self {
        let kib = most.min(kib(bytes));
        Self {
            arrivals: Arrivals::new(kib as usize * 1024),
            of_senders: Turns::new(ENOUGH, kib / 2),
            of_namespaces: Turns::new(ENOUGH, kib / 8),
            read: Turns::new(kib, kib / 4),
            read_of_others: Turns::new(kib / 2, kib / 4),
        }
    }
}

impl Default for BodyLimits {
    fn default() -> Self {
        let memory = memory_limit::limit();
        Self {
            large: SizeLimits::of(LARGE_BODIES, memory / PARTS_LARGE),
            small: SizeLimits::of(SMALL_BODIES, memory / PARTS_SMALL),
            huge: Turns::new(ENOUGH, 1),
            one_at_a_time: Turns::new(ENOUGH, 1),
            while_short: Turns::new(1, 1),
            one_of_others: Turns::new(1, 1),
        }
    }
}

/// The body of a review. It holds its memory and its turns until it is dropped.
pub(super) struct ReviewBody {
    pub(super) body: Bytes,
    _arrival: Arrival,
    _turns: Vec<Turn>,
    _while_short: Option<Turn>,
    _huge: Option<Huge>,
}

impl ReviewBody {
    /// Reads the body of a request, once there is room for it. `is_short` tells if memory is short.
    ///
    /// # Errors
    /// The answer that turns the request away.
    pub(super) async fn read(
        request: Request,
        limits: &BodyLimits,
        api_servers: &ApiServers,
        is_short: fn() -> bool,
    ) -> Result<Self, Response> {
        let sender = request.extensions().get::<PeerAddress>();
        let sender = sender.map_or(IpAddr::V6(Ipv6Addr::UNSPECIFIED), |PeerAddress(address)| *address);
        let declared = request.headers().get(header::CONTENT_LENGTH);
        let declared = declared.and_then(|length| length.to_str().ok()?.parse().ok());
        let bytes = declared.unwrap_or(LONGEST_BODY);
        if bytes > LONGEST_BODY {
            return Err(too_long());
        }
        let class = api_servers.class_of(sender);
        let sender = match class {
            // Exact: other addresses in its network may be anyone's.
            SenderClass::ApiServer => sender.to_canonical().to_string(),
            SenderClass::Unidentified | SenderClass::Other => ConnectionLimit::name(sender),
        };
        let may_wait = bytes > SMALL_BODY && class != SenderClass::ApiServer;
        let while_short = if may_wait && is_short() {
            let turn = timeout(TURN_TIMEOUT, limits.while_short.take(&sender, 1)).await;
            Some(turn.map_err(|_| short())?)
        } else {
            None
        };
        let size_limits = if bytes > SMALL_BODY {
            &limits.large
        } else {
            &limits.small
        };
        let arrival = size_limits.arrivals.begin(&sender, class, bytes);
        let waits = async {
            let body = arrived(request.into_body(), bytes, &arrival).await?;
            arrival.whole();
            let turns = limits.turns(size_limits, &sender, class, &body).await?;
            Ok((body, turns))
        };
        let (body, (turns, huge)) = tokio::select! {
            waited = waits => waited?,
            () = arrival.cut_off() => return Err(too_slow()),
        };
        if !arrival.keep() {
            return Err(too_slow());
        }
        Ok(Self {
            body,
            _arrival: arrival,
            _turns: turns,
            _while_short: while_short,
            _huge: huge,
        })
    }
}

impl BodyLimits {
    /// Waits for the turns that a body needs before its review.
    async fn turns(
        &self,
        size_limits: &SizeLimits,
        sender: &str,
        class: SenderClass,
        body: &Bytes,
    ) -> Result<(Vec<Turn>, Option<Huge>), Response> {
        let of_sender = size_limits.of_senders.take(sender, kib(body.len()));
        let of_sender = timeout(TURN_TIMEOUT, of_sender).await.map_err(|_| crowded())?;
        let whose = format!("{sender} {}", review::namespace(body));
        let of_namespace = size_limits.of_namespaces.take(&whose, kib(body.len()));
        let of_namespace = timeout(TURN_TIMEOUT, of_namespace).await;
        let of_namespace = of_namespace.map_err(|_| crowded())?;
        let mut turns = vec![of_sender, of_namespace];
        // One at a time: each may take 50 MB.
        let mut huge = None;
        if Extent::of_text(body).exceeds(huge_lock::FROM) {
            turns.push(self.huge.take(&whose, 1).await);
            turns.push(self.one_at_a_time.take(sender, 1).await);
            if class != SenderClass::ApiServer {
                turns.push(self.one_of_others.take(sender, 1).await);
            }
            huge = Some(huge_lock::turn().await);
        }
        let read = async {
            let into = kib(body.len()).saturating_mul(TIMES);
            if !class.has_priority() {
                turns.push(size_limits.read_of_others.take(&whose, into).await);
            }
            turns.push(size_limits.read.take(&whose, into).await);
        };
        if huge.is_some() {
            // Others wait for this one.
            timeout(TURN_TIMEOUT, read).await.map_err(|_| crowded())?;
        } else {
            read.await;
        }
        Ok((turns, huge))
    }
}

/// The body, once it has arrived.
async fn arrived(body: Body, most: usize, arrival: &Arrival) -> Result<Bytes, Response> {
    let mut body = Limited::new(body, most);
    let mut arrived = BytesMut::new();
    let all = async {
        while let Some(frame) = body.frame().await {
            // Other frames are trailers.
            if let Ok(data) = frame.map_err(|error| unread(&*error))?.into_data() {
                arrival.grow(data.len()).await;
                arrived.extend_from_slice(&data);
            }
        }
        Ok(())
    };
    timeout(ARRIVAL_TIMEOUT, all).await.map_err(|_| late())??;
    Ok(arrived.freeze())
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes / 1024 + 1).unwrap_or(u32::MAX)
}

fn late() -> Response {
    (StatusCode::REQUEST_TIMEOUT, "the body did not arrive in time").into_response()
}

fn too_long() -> Response {
    let message = format!("the body is longer than {LONGEST_BODY} bytes");
    (StatusCode::PAYLOAD_TOO_LARGE, message).into_response()
}

fn too_slow() -> Response {
    let message = "the body arrives more slowly than others that need its memory; try again";
    (StatusCode::TOO_MANY_REQUESTS, message).into_response()
}

fn unread(error: &(dyn Error + Send + Sync + 'static)) -> Response {
    match error.is::<LengthLimitError>() {
        true => too_long(),
        false => (StatusCode::BAD_REQUEST, "the body is incomplete").into_response(),
    }
}

fn short() -> Response {
    let message = "the control plane is short of memory, and this address is not an API server; try again";
    (StatusCode::TOO_MANY_REQUESTS, message).into_response()
}

fn crowded() -> Response {
    let message = "too many objects of this namespace are being reviewed; try again";
    (StatusCode::TOO_MANY_REQUESTS, message).into_response()
}

#[cfg(test)]
mod tests;
