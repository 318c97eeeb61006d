//! Deadlines of callers: what has not ended by then ends with DEADLINE_EXCEEDED.
//!
//! Promises: a call ends by its caller's deadline, or the server's own; a stream ends by its
//! caller's, even if the caller ignores the clock. Memory that was held for the reader is freed
//! then. By itself tonic ends calls with CANCELLED, which means that the caller has gone, and ends
//! no streams.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::stream;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Body as _, Frame};
use tokio::time::{Instant, sleep_until, timeout_at};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use super::large::held;

/// The header with a caller's deadline.
const HEADER: &str = "grpc-timeout";
/// Most digits of its number, by the gRPC specification.
const DIGITS: usize = 8;

/// Adds deadlines to services. `call` limits every call, but not streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    pub(super) call: Duration,
}

impl<S> Layer<S> for Deadlines {
    type Service = Deadline<S>;

    fn layer(&self, inner: S) -> Deadline<S> {
        Deadline {
            inner,
            call: self.call,
        }
    }
}

/// A service with deadlines.
#[derive(Clone, Debug)]
pub(super) struct Deadline<S> {
    inner: S,
    call: Duration,
}

impl<S> Service<Request<Body>> for Deadline<S>
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
        let now = Instant::now();
        // A deadline that overflows is none.
        let end = timeout_of(request.headers()).and_then(|timeout| now.checked_add(timeout));
        let latest = now + self.call;
        let answer = self.inner.call(request);
        Box::pin(async move {
            match timeout_at(end.map_or(latest, |end| end.min(latest)), answer).await {
                Ok(Ok(answer)) => Ok(match (end, held(answer)) {
                    // A refusal ends with its headers, and must be sent so: otherwise only tonic's
                    // own clients read its status.
                    (Some(end), answer) if !answer.body().is_end_stream() => {
                        answer.map(|body| until(body, end))
                    }
                    (_, answer) => answer,
                }),
                Ok(Err(never)) => Err(never),
                Err(_) => Ok(exceeded().into_http()),
            }
        })
    }
}

fn exceeded() -> Status {
    Status::deadline_exceeded("the deadline has passed")
}

/// How long the caller waits; `None` if the header is missing or malformed.
fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(HEADER)?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if number.len() > DIGITS || !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let number: u64 = number.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(number * 3600),
        "M" => Duration::from_secs(number * 60),
        "S" => Duration::from_secs(number),
        "m" => Duration::from_millis(number),
        "u" => Duration::from_micros(number),
        "n" => Duration::from_nanos(number),
        _ => return None,
    })
}

/// The frames of a body until `end`, and then the status of a missed deadline.
fn until(body: Body, end: Instant) -> Body {
    let frames = stream::unfold(Some(body), move |body| async move {
        let mut body = body?;
        tokio::select! {
            biased;
            frame = body.frame() => Some((frame?, Some(body))),
            // Dropping the body frees what was held for it.
            () = sleep_until(end) => {
                let mut trailers = HeaderMap::new();
                let frame = exceeded().add_header(&mut trailers).map(|()| Frame::trailers(trailers));
                Some((frame, None))
            }
        }
    });
    Body::new(StreamBody::new(frames))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use tonic::Code;
    use tower::{ServiceExt as _, service_fn};

    use super::*;

    const CALL: Duration = Duration::from_secs(30);

    #[tokio::test]
    async fn a_refusal_is_over_with_its_headers() {
        let refuses = service_fn(|_: Request<Body>| async { Ok(Status::not_found("x").into_http()) });
        let answer = Deadlines { call: CALL }
            .layer(refuses)
            .oneshot(request("90S"))
            .await
            .unwrap();
        assert!(answer.body().is_end_stream());
        assert_eq!(code(answer.headers()), Code::NotFound);
    }

    fn request(deadline: &str) -> Request<Body> {
        let request = Request::builder().header(HEADER, deadline);
        request.body(Body::empty()).unwrap()
    }

    fn code(headers: &HeaderMap) -> Code {
        Status::from_header_map(headers).unwrap().code()
    }

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        for (said, read) in [
            ("2H", Some(Duration::from_secs(7200))),
            ("3M", Some(Duration::from_secs(180))),
            ("10S", Some(Duration::from_secs(10))),
            ("250m", Some(Duration::from_millis(250))),
            ("7u", Some(Duration::from_micros(7))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("99999999H", Some(Duration::from_secs(99_999_999 * 3600))),
            ("0m", Some(Duration::ZERO)),
            ("100000000S", None),
            ("-1S", None),
            ("+1S", None),
            ("S", None),
            ("1", None),
            ("1s", None),
            ("1ä", None),
            ("", None),
        ] {
            let Ok(value) = said.parse() else { continue };
            let headers = HeaderMap::from_iter([(HEADER.parse().unwrap(), value)]);
            assert_eq!(timeout_of(&headers), read, "{said:?}");
        }
        assert_eq!(timeout_of(&HeaderMap::new()), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_ends_by_the_earlier_deadline_and_holds_nothing_then() {
        let held = Arc::new(());
        let service = Deadlines { call: CALL }.layer(service_fn({
            let held = Arc::downgrade(&held);
            move |_: Request<Body>| {
                let held = held.upgrade();
                async move {
                    std::future::pending::<()>().await;
                    drop(held);
                    Ok::<_, Infallible>(Response::new(Body::empty()))
                }
            }
        }));
        for (deadline, waited) in [
            ("250m", Duration::from_millis(250)),
            ("2M", CALL),
            ("99999999H", CALL),
            ("nonsense", CALL),
        ] {
            let begun = Instant::now();
            let answer = service.clone().oneshot(request(deadline)).await.unwrap();
            assert_eq!(code(answer.headers()), Code::DeadlineExceeded, "{deadline}");
            assert!(
                begun.elapsed().abs_diff(waited) < Duration::from_millis(5),
                "{deadline}"
            );
            assert_eq!(Arc::strong_count(&held), 1, "{deadline}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_ends_by_the_deadline_of_its_caller_only_and_holds_nothing_then() {
        let held = Arc::new(());
        let service = Deadlines { call: CALL }.layer(service_fn({
            let held = Arc::downgrade(&held);
            move |_: Request<Body>| {
                // One message, and then silence.
                let silence = stream::unfold((held.upgrade(), true), |(held, first)| async move {
                    if !first {
                        std::future::pending::<()>().await;
                    }
                    let frame = Ok::<_, Status>(Frame::data(Bytes::from_static(b"one")));
                    Some((frame, (held, false)))
                });
                std::future::ready(Ok(Response::new(Body::new(StreamBody::new(silence)))))
            }
        }));
        let begun = Instant::now();
        let answer = service.clone().oneshot(request("90S")).await.unwrap();
        assert_eq!(Arc::strong_count(&held), 2);
        let all = answer.into_body().collect().await.unwrap();
        assert_eq!(code(all.trailers().unwrap()), Code::DeadlineExceeded);
        assert_eq!(all.to_bytes(), "one");
        assert_eq!(begun.elapsed().as_secs(), 90);
        assert_eq!(Arc::strong_count(&held), 1);

        let answer = service.oneshot(Request::new(Body::empty())).await.unwrap();
        let without = tokio::time::timeout(CALL * 100, answer.into_body().collect()).await;
        assert!(without.is_err(), "it was ended without a deadline");
    }
}
