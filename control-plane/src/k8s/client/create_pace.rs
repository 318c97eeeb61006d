//! Limits what a namespace's new and resumed objects cost the API server.
//!
//! A tenant chooses what the control plane creates for it. The API server may work on one object
//! for minutes before it refuses it: the time to check some lists grows with the square of their
//! length. Sixteen of these at once would keep it from answering anybody.
//!
//! Promises: a namespace begins with one create request at a time, and may have twice as many after
//! each one that is answered soon. After a refusal that took long, or no answer, its requests are
//! refused here for a while, and then begin with one again. Other namespaces notice nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use tokio::sync::Notify;
use tokio::time::Instant;

/// The most requests at a time: more than are made.
const MOST: usize = 64;
/// A refusal that took this long is slow.
const SLOW: Duration = Duration::from_secs(2);
/// How long a namespace waits after a slow refusal: at first, and at most.
const WAIT: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(600));
/// Refusals that say nothing about the object.
const PASSING: [StatusCode; 3] = [
    StatusCode::FORBIDDEN,
    StatusCode::CONFLICT,
    StatusCode::TOO_MANY_REQUESTS,
];
/// Namespaces that are remembered before those that are idle are forgotten.
const REMEMBERED: usize = 1024;
/// How long a namespace without requests keeps its pace.
const IDLE: Duration = Duration::from_secs(60);

/// The pace of each namespace. Cheap to clone; clones share it.
#[derive(Clone, Default)]
pub(super) struct CreatePace(Arc<Mutex<HashMap<String, Pace>>>);

struct Pace {
    /// How many requests may be in flight.
    window: usize,
    in_flight: usize,
    /// Until when requests are refused.
    blocked: Option<Instant>,
    /// How long the next slow refusal blocks.
    wait: Duration,
    used: Instant,
    left: Arc<Notify>,
}

impl Pace {
    fn new() -> Self {
        Self {
            window: 1,
            in_flight: 0,
            blocked: None,
            wait: WAIT.0,
            used: Instant::now(),
            left: Arc::default(),
        }
    }

    fn is_idle(&self) -> bool {
        let is_blocked = self.blocked.is_some_and(|until| until > Instant::now());
        self.in_flight == 0 && !is_blocked && self.used.elapsed() >= IDLE
    }
}

/// Requests of this namespace are refused for this long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Blocked(pub(super) Duration);

/// A request in flight, until it is dropped.
pub(super) struct Flight {
    namespace: String,
    pace: CreatePace,
    began: Instant,
}

impl CreatePace {
    fn locked(&self) -> MutexGuard<'_, HashMap<String, Pace>> {
        // Nothing under this lock can leave the map half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until a request of this namespace may be sent. Cancel-safe.
    ///
    /// # Errors
    /// Its requests are refused for now.
    pub(super) async fn enter(&self, namespace: &str) -> Result<Flight, Blocked> {
        loop {
            let left = match self.try_enter(namespace)? {
                Ok(flight) => return Ok(flight),
                Err(left) => left,
            };
            let left = left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            // One may have left before that.
            match self.try_enter(namespace)? {
                Ok(flight) => return Ok(flight),
                Err(_) => left.await,
            }
        }
    }

    /// The flight, or what tells that one has left.
    fn try_enter(&self, namespace: &str) -> Result<Result<Flight, Arc<Notify>>, Blocked> {
        let mut all = self.locked();
        if all.len() >= REMEMBERED && !all.contains_key(namespace) {
            all.retain(|_, pace| !pace.is_idle());
        }
        let pace = all.entry(namespace.to_owned()).or_insert_with(Pace::new);
        if pace.is_idle() {
            pace.window = 1;
        }
        let now = Instant::now();
        if let Some(until) = pace.blocked.filter(|until| *until > now) {
            return Err(Blocked(until - now));
        }
        if pace.in_flight >= pace.window {
            return Ok(Err(Arc::clone(&pace.left)));
        }
        pace.in_flight += 1;
        pace.used = now;
        Ok(Ok(Flight {
            namespace: namespace.to_owned(),
            pace: self.clone(),
            began: now,
        }))
    }
}

impl Flight {
    /// Passes the answer on, and learns from it.
    pub(super) fn land<B, E>(self, answer: Result<Response<B>, E>) -> Result<Response<B>, E> {
        let passes = |status: StatusCode| status.is_success() || PASSING.contains(&status);
        let accepted = answer.as_ref().is_ok_and(|answer| passes(answer.status()));
        self.landed(!accepted);
        answer
    }

    fn landed(self, refused: bool) {
        let mut all = self.pace.locked();
        let Some(pace) = all.get_mut(&self.namespace) else {
            return;
        };
        if refused && self.began.elapsed() >= SLOW {
            pace.window = 1;
            // Requests that were sent together are refused together. That is no repetition.
            let is_new = pace.blocked.is_none_or(|until| until <= self.began);
            if is_new {
                pace.blocked = Some(Instant::now() + pace.wait);
                pace.wait = pace.wait.saturating_mul(2).min(WAIT.1);
            }
        } else if !refused {
            pace.window = pace.window.saturating_mul(2).min(MOST);
            pace.wait = WAIT.0;
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(pace) = self.pace.locked().get_mut(&self.namespace) {
            pace.in_flight = pace.in_flight.saturating_sub(1);
            pace.used = Instant::now();
            pace.left.notify_waiters();
        }
    }
}

/// Marks a request to change an object as one that lets the API server check as much as for a new
/// one. It is an extension of the request.
#[derive(Clone)]
pub(crate) struct Paced;

/// The namespace of a request that creates an object, or is marked. `None` for others, and for
/// events, which the control plane words itself.
pub(super) fn namespace_of<B>(request: &Request<B>) -> Option<&str> {
    let (_, rest) = request.uri().path().split_once("/namespaces/")?;
    let (namespace, resource) = rest.split_once('/')?;
    let creates = request.method() == Method::POST && !resource.contains('/') && resource != "events";
    let is_marked = request.extensions().get::<Paced>().is_some();
    (creates || is_marked).then_some(namespace)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    /// How many requests of this namespace may be sent now.
    fn window(pace: &CreatePace, namespace: &str) -> usize {
        let mut flights = Vec::new();
        while let Some(entered) = pace.enter(namespace).now_or_never() {
            match entered {
                Ok(flight) => flights.push(flight),
                Err(Blocked(_)) => return 0,
            }
        }
        flights.len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_begins_with_one_request_and_doubles_with_each_success() {
        let pace = CreatePace::default();
        for expected in [1, 2, 4, 8, 16, 32, 64, 64] {
            assert_eq!(window(&pace, "ns"), expected);
            pace.enter("ns").await.unwrap().landed(false);
        }
        assert_eq!(window(&pace, "other"), 1);
        tokio::time::advance(IDLE).await;
        assert_eq!(window(&pace, "ns"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn slow_refusals_block_a_namespace_for_longer_each_time() {
        let pace = CreatePace::default();
        pace.enter("ns").await.unwrap().landed(false);
        pace.enter("ns").await.unwrap().landed(true);
        assert_eq!(window(&pace, "ns"), 2, "a refusal at once costs nothing");
        for wait in [30, 60, 120, 240, 480, 600, 600] {
            let flight = pace.enter("ns").await.unwrap();
            tokio::time::advance(SLOW).await;
            flight.landed(true);
            let blocked = pace.enter("ns").await.map(drop);
            assert_eq!(blocked, Err(Blocked(Duration::from_secs(wait))));
            assert_eq!(window(&pace, "other"), 1);
            tokio::time::advance(Duration::from_secs(wait)).await;
            assert_eq!(window(&pace, "ns"), 1);
        }
        pace.enter("ns").await.unwrap().landed(false);
        assert_eq!(window(&pace, "ns"), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_refused_together_block_a_namespace_once() {
        let pace = CreatePace::default();
        for _ in 0..2 {
            pace.enter("ns").await.unwrap().landed(false);
        }
        let burst = [
            pace.enter("ns").await.unwrap(),
            pace.enter("ns").await.unwrap(),
            pace.enter("ns").await.unwrap(),
        ];
        for flight in burst {
            tokio::time::advance(SLOW).await;
            flight.landed(true);
        }
        tokio::time::advance(WAIT.0).await;
        assert_eq!(window(&pace, "ns"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn one_that_waits_goes_on_when_another_ends_even_if_that_is_dropped() {
        let pace = CreatePace::default();
        let first = pace.enter("ns").await.unwrap();
        let second = pace.enter("ns");
        tokio::pin!(second);
        assert!(second.as_mut().now_or_never().is_none());
        drop(first);
        assert!(second.await.is_ok());
        assert_eq!(window(&pace, "ns"), 1);
    }

    fn request(method: Method, path: &str) -> Request<()> {
        Request::builder().method(method).uri(path).body(()).unwrap()
    }

    #[test]
    fn only_creations_in_a_namespace_and_marked_changes_count() {
        for path in [
            "/apis/batch/v1/namespaces/ns/jobs?a=b",
            "/api/v1/namespaces/ns/services",
        ] {
            assert_eq!(namespace_of(&request(Method::POST, path)), Some("ns"));
        }
        let mut change = request(Method::PATCH, "/apis/batch/v1/namespaces/ns/jobs/j");
        assert_eq!(namespace_of(&change), None);
        change.extensions_mut().insert(Paced);
        assert_eq!(namespace_of(&change), Some("ns"));
        for (method, path) in [
            (Method::PUT, "/apis/batch/v1/namespaces/ns/jobs/j"),
            (Method::POST, "/apis/events.k8s.io/v1/namespaces/ns/events"),
            (Method::POST, "/api/v1/namespaces/ns/pods/p/eviction"),
            (Method::POST, "/apis/authentication.k8s.io/v1/tokenreviews"),
            (Method::POST, "/api/v1/namespaces"),
        ] {
            assert_eq!(
                namespace_of(&request(method.clone(), path)),
                None,
                "{method} {path}"
            );
        }
    }
}
