//! Limits what a namespace's new and resumed objects cost the API server.
//!
//! A tenant chooses what the control plane creates for it. The API server may work on one object
//! for minutes before it refuses it: the time to check some lists grows with the square of their
//! length. Sixteen of these at once would keep it from answering anybody.
//!
//! Promises: a namespace begins with one create request at a time, and may have twice as many after
//! each one that is accepted soon, half as many after one that is accepted late. After a refusal,
//! or no answer, it begins with one again, grows to half as many as before, and then by one at a
//! time. Each refusal makes it wait [`PAUSE`] times as long as that took. If that took long, its
//! requests are refused here for a while instead. Other namespaces notice nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use http::{Method, Request, Response, StatusCode};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// The most requests at a time: more than are made.
const MOST: usize = 64;
/// An object that was accepted after this long was accepted late.
const LATE: Duration = Duration::from_secs(1);
/// How many requests at a time late answers leave: the API server may be slow for others' sake.
const FEW: usize = 4;
/// How long a namespace pauses after a refusal, as a multiple of the time that it took.
const PAUSE: u32 = 4;
/// A refusal that says nothing about the object, and took less than this, changes nothing.
const SOON: Duration = Duration::from_millis(100);
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
/// What the control plane words itself: events, and what starts a gang.
const OWN: [&str; 3] = ["events", "podgroups", "workloads"];
/// Namespaces that are remembered before those that are idle are forgotten.
const REMEMBERED: usize = 1024;
/// How long a namespace without requests keeps its pace, if none was refused and if some were.
const IDLE: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1200));

/// The pace of each namespace. Cheap to clone; clones share it.
#[derive(Clone, Default)]
pub(super) struct CreatePace(Arc<Mutex<HashMap<String, Pace>>>);

struct Pace {
    /// How many requests may be in flight.
    window: usize,
    /// Beyond this the window grows by one at a time.
    doubles_to: usize,
    /// Requests that were accepted soon since the window grew.
    accepted: usize,
    /// When the last refusal narrowed the window.
    narrowed: Option<Instant>,
    in_flight: usize,
    /// Until when requests are refused.
    blocked: Option<Instant>,
    /// Until when requests wait.
    paused: Option<Instant>,
    /// How long the next slow refusal blocks.
    wait: Duration,
    used: Instant,
    left: Arc<Notify>,
}

impl Pace {
    fn new() -> Self {
        Self {
            window: 1,
            doubles_to: MOST,
            accepted: 0,
            narrowed: None,
            in_flight: 0,
            blocked: None,
            paused: None,
            wait: WAIT.0,
            used: Instant::now(),
            left: Arc::default(),
        }
    }

    fn is_idle(&self) -> bool {
        let idle = if self.narrowed.is_some() { IDLE.1 } else { IDLE.0 };
        let now = Instant::now();
        let rests = self.blocked.max(self.paused).is_some_and(|until| until > now);
        self.in_flight == 0 && !rests && self.used.elapsed() >= idle
    }

    /// Learns from an answer to a request that began at this time.
    fn learn(&mut self, began: Instant, outcome: Outcome) {
        let now = Instant::now();
        let took = now.saturating_duration_since(began);
        match outcome {
            Outcome::Accepted => self.accepted(took),
            Outcome::Passing if took < SOON => {}
            Outcome::Passing | Outcome::Refused => {
                self.narrow(began);
                if outcome == Outcome::Refused && took >= SLOW {
                    self.block(began);
                } else {
                    let pause = took.saturating_mul(PAUSE).min(WAIT.0);
                    let until = self.paused.max(Some(now)).unwrap_or(now) + pause;
                    self.paused = Some(until.min(now + WAIT.1));
                }
            }
        }
    }

    fn accepted(&mut self, took: Duration) {
        if took >= LATE {
            self.window = self.window.min(FEW.max(self.window / 2));
            return;
        }
        self.accepted += 1;
        if self.window < self.doubles_to {
            self.window = self.window.saturating_mul(2).min(self.doubles_to);
            self.accepted = 0;
        } else if self.accepted >= self.window {
            self.window = (self.window + 1).min(MOST);
            self.accepted = 0;
        }
    }

    /// Requests that were sent together are refused together. That is no repetition.
    fn narrow(&mut self, began: Instant) {
        if self.narrowed.is_none_or(|at| at <= began) {
            self.doubles_to = (self.window / 2).max(1);
            self.narrowed = Some(Instant::now());
        }
        self.window = 1;
        self.accepted = 0;
    }

    fn block(&mut self, began: Instant) {
        let now = Instant::now();
        if self.blocked.is_some_and(|until| until > began) {
            return;
        }
        if self.blocked.is_none_or(|until| until + WAIT.1 <= now) {
            self.wait = WAIT.0;
        }
        self.blocked = Some(now + self.wait);
        self.wait = self.wait.saturating_mul(2).min(WAIT.1);
    }
}

/// Requests of this namespace are refused for this long.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Blocked(pub(super) Duration);

/// What a request may do.
enum Entry {
    Begin(Flight),
    /// Wait until one leaves, which this tells.
    Full(Arc<Notify>),
    Pause(Instant),
}

/// A request in flight, until it is dropped.
pub(super) struct Flight {
    namespace: String,
    pace: CreatePace,
    began: Instant,
    is_answered: bool,
}

/// What the API server made of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Accepted,
    /// It was refused for a reason that says nothing about the object.
    Passing,
    /// It was refused, or not answered.
    Refused,
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
                Entry::Begin(flight) => return Ok(flight),
                Entry::Pause(until) => {
                    sleep_until(until).await;
                    continue;
                }
                Entry::Full(left) => left,
            };
            let left = left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            // One may have left before that.
            match self.try_enter(namespace)? {
                Entry::Begin(flight) => return Ok(flight),
                Entry::Pause(until) => sleep_until(until).await,
                Entry::Full(_) => left.await,
            }
        }
    }

    fn try_enter(&self, namespace: &str) -> Result<Entry, Blocked> {
        let mut all = self.locked();
        if all.len() >= REMEMBERED && !all.contains_key(namespace) {
            all.retain(|_, pace| !pace.is_idle());
        }
        let pace = all.entry(namespace.to_owned()).or_insert_with(Pace::new);
        if pace.is_idle() {
            *pace = Pace::new();
        }
        let now = Instant::now();
        if let Some(until) = pace.blocked.filter(|until| *until > now) {
            return Err(Blocked(until - now));
        }
        if let Some(until) = pace.paused.filter(|until| *until > now) {
            return Ok(Entry::Pause(until));
        }
        if pace.in_flight >= pace.window {
            return Ok(Entry::Full(Arc::clone(&pace.left)));
        }
        pace.in_flight += 1;
        pace.used = now;
        Ok(Entry::Begin(Flight {
            namespace: namespace.to_owned(),
            pace: self.clone(),
            began: now,
            is_answered: false,
        }))
    }
}

impl Flight {
    /// Passes the answer on, and learns from it.
    pub(super) fn land<B, E>(self, answer: Result<Response<B>, E>) -> Result<Response<B>, E> {
        let outcome = match &answer {
            Ok(answer) if answer.status().is_success() => Outcome::Accepted,
            Ok(answer) if PASSING.contains(&answer.status()) => Outcome::Passing,
            _ => Outcome::Refused,
        };
        self.landed(outcome);
        answer
    }

    fn landed(mut self, outcome: Outcome) {
        self.is_answered = true;
        if let Some(pace) = self.pace.locked().get_mut(&self.namespace) {
            pace.learn(self.began, outcome);
        }
    }
}

impl Drop for Flight {
    fn drop(&mut self) {
        if let Some(pace) = self.pace.locked().get_mut(&self.namespace) {
            // Nobody waits for it any more, but the API server may still work on it.
            if !self.is_answered && self.began.elapsed() >= LATE {
                pace.learn(self.began, Outcome::Refused);
            }
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
/// objects that the control plane words itself.
pub(super) fn namespace_of<B>(request: &Request<B>) -> Option<&str> {
    let (_, rest) = request.uri().path().split_once("/namespaces/")?;
    let (namespace, resource) = rest.split_once('/')?;
    let creates = request.method() == Method::POST && !resource.contains('/') && !OWN.contains(&resource);
    let is_marked = request.extensions().get::<Paced>().is_some();
    (creates || is_marked).then_some(namespace)
}

#[cfg(test)]
mod tests;
