//! Limits how many calls are in flight.
//!
//! Promises: at most [`OF_ONE`] calls from one address are in flight. The first [`APART`] of each
//! address have a limit of their own, so a few addresses cannot keep others out. All addresses
//! together have [`ALL`]. Further calls are refused at once, so their requests do not stay in
//! memory. A stream is in flight until its first answer; after that it holds one of the
//! [`super::watch_slots`].

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use lockstep_process::turns::{Turn, Turns};
use tonic::body::Body;
use tonic::{Code, Status};
use tower::{Layer, Service};

use crate::k8s::memory_limit::{self, Share};
use crate::net::tls::ConnectionHandle;

/// Calls of one address in flight. Each has up to 16 KiB of headers before its caller is known.
const OF_ONE: u32 = 128;
/// The first calls of each address.
const APART: u32 = 4;
/// Calls of all addresses together, first ones and others, if there is memory for them.
const ALL: (u32, u32) = (8192, 4096);
/// The memory for calls until they are answered: headers, a token and a request.
const MEMORY: Share = Share {
    parts: 16,
    each: 32 << 10,
};
/// Calls that must be authenticated.
const OF_KNOWN: &str = "/lockstep.platform.v1.Platform/";
/// The streaming call. It holds one of the [`super::watch_slots`] from its first answer on.
const WATCH: &str = "/lockstep.platform.v1.Platform/WatchGroups";

/// Limits the calls of services.
#[derive(Clone)]
pub(super) struct Calls {
    own: Arc<Turns>,
    shared: Arc<Turns>,
}

impl Default for Calls {
    fn default() -> Self {
        Self::with_memory(memory_limit::limit())
    }
}

impl Calls {
    /// As many calls as this much memory allows.
    fn with_memory(memory: usize) -> Self {
        let calls = u32::try_from(MEMORY.fits(memory)).unwrap_or(u32::MAX);
        let others = (calls / 3).clamp(OF_ONE - APART, ALL.1);
        let first = (calls / 3 * 2).clamp(OF_ONE, ALL.0);
        Self {
            own: Arc::new(Turns::new(first, APART)),
            shared: Arc::new(Turns::new(others, OF_ONE - APART)),
        }
    }

    /// A slot for a call of this address, if there is one.
    fn slot(&self, address: &str) -> Option<Turn> {
        self.own
            .try_take(address, 1)
            .or_else(|| self.shared.try_take(address, 1))
    }
}

impl<S> Layer<S> for Calls {
    type Service = Bounded<S>;

    fn layer(&self, inner: S) -> Bounded<S> {
        Bounded {
            inner,
            calls: self.clone(),
        }
    }
}

/// A service with a limited number of calls in flight.
#[derive(Clone)]
pub(super) struct Bounded<S> {
    inner: S,
    calls: Calls,
}

impl<S> Service<Request<Body>> for Bounded<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let connection = request.extensions().get::<ConnectionHandle>().cloned();
        let address = connection
            .as_ref()
            .map(ConnectionHandle::address)
            .unwrap_or_default();
        let Some(turn) = self.calls.slot(&address) else {
            let message = "too many calls from this address are in flight; try again";
            let refused = Status::resource_exhausted(message).into_http();
            return Box::pin(std::future::ready(Ok(refused)));
        };
        let connection = connection.filter(|_| request.uri().path().starts_with(OF_KNOWN));
        let is_watch = request.uri().path() == WATCH;
        let answer = self.inner.call(request);
        Box::pin(async move {
            let Ok(answer) = answer.await;
            drop(turn);
            let Some(connection) = connection.filter(|_| is_of_known(&answer)) else {
                return Ok(answer);
            };
            connection.know();
            // A refusal ends with its headers.
            if answer.body().is_end_stream() {
                return Ok(answer);
            }
            let stream = is_watch.then(|| connection.stream());
            // Each message of a stream becomes some frames.
            Ok(answer.map(|body| {
                Body::new(body.map_frame(move |frame| {
                    let _stream = &stream;
                    connection.know();
                    frame
                }))
            }))
        })
    }
}

/// True if only an authenticated caller gets this answer: a result, or a refusal for another
/// reason.
fn is_of_known(answer: &Response<Body>) -> bool {
    let status = Status::from_header_map(answer.headers());
    status.is_none_or(|status| {
        matches!(
            status.code(),
            Code::Ok | Code::NotFound | Code::PermissionDenied | Code::FailedPrecondition | Code::Aborted
        )
    })
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    fn code(answer: &Response<Body>) -> Code {
        Status::from_header_map(answer.headers()).unwrap().code()
    }

    #[tokio::test]
    async fn no_more_calls_are_in_flight_than_the_limit_until_one_ends() {
        let service = Calls::default().layer(service_fn(|_: Request<Body>| {
            std::future::pending::<Result<Response<Body>, Infallible>>()
        }));
        let call = || Box::pin(service.clone().oneshot(Request::new(Body::empty())));
        let mut under_way: Vec<_> = (0..OF_ONE).map(|_| call()).collect();
        assert!(under_way.iter_mut().all(|call| call.now_or_never().is_none()));
        let refused = call().now_or_never().unwrap().unwrap();
        assert_eq!(code(&refused), Code::ResourceExhausted);
        under_way.pop();
        assert!(call().now_or_never().is_none());
    }

    #[test]
    fn few_addresses_keep_no_other_one_out() {
        let calls = Calls::with_memory(1 << 40);
        let taken: Vec<_> = (0..40)
            .flat_map(|n| std::iter::repeat_n(n, OF_ONE as usize))
            .filter_map(|n| calls.slot(&format!("10.0.0.{n}")))
            .collect();
        assert_eq!(taken.len(), (ALL.1 + 40 * APART) as usize);
        let others: Vec<_> = (0..APART).map(|_| calls.slot("10.0.1.0")).collect();
        assert!(others.iter().all(Option::is_some));
        assert!(calls.slot("10.0.1.0").is_none());
    }

    #[test]
    fn all_calls_together_take_a_part_of_the_memory() {
        let calls = Calls::with_memory(256 << 20);
        let taken: Vec<_> = (0..10_000)
            .filter_map(|n| calls.slot(&format!("10.0.{}.{}", n / 100, n % 100)))
            .collect();
        assert!(
            taken.len() * MEMORY.each <= (256 << 20) / MEMORY.parts,
            "{}",
            taken.len()
        );
        assert!(taken.len() > 500, "{}", taken.len());
    }

    #[test]
    fn an_answered_or_forbidden_caller_is_known_and_one_without_a_token_is_not() {
        assert!(is_of_known(&Response::new(Body::empty())));
        for (code, is_known) in [
            (Code::PermissionDenied, true),
            (Code::NotFound, true),
            (Code::Unauthenticated, false),
            (Code::ResourceExhausted, false),
            (Code::InvalidArgument, false),
        ] {
            assert_eq!(
                is_of_known(&Status::new(code, "").into_http()),
                is_known,
                "{code:?}"
            );
        }
    }
}
