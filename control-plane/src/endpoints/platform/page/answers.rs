//! Answers with states: one state, or a stream of them to a reader that follows changes.
//!
//! Promises: each event is the whole state. A state is not sent twice in a row. Changes while the
//! reader is busy are only sent as a part of the newest state. Nothing is rendered before the
//! reader has room for it.

use std::convert::Infallible;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep_until};

use super::request::Subject;
use super::view::RenderError;
use super::{MAX_READERS, StatusPage};
use crate::controllers::restart::board::Snapshot;

/// Least time between two states for one reader. Changes within this time are sent as one.
const PACE: Duration = Duration::from_millis(100);
/// Longest time between two events, so that the reader knows that it is connected. A change of
/// leader is noticed then, since no event announces it.
const ALIVE: Duration = Duration::from_secs(5);
const JSON: [(HeaderName, HeaderValue); 1] =
    [(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))];

/// The state, once.
pub(super) async fn state(State(page): State<StatusPage>, subject: Subject) -> Result<Response, RenderError> {
    let text = page.render(&subject).await?;
    Ok((JSON, text.to_string()).into_response())
}

/// The state, and again after each change.
pub(super) async fn events(State(page): State<StatusPage>, headers: HeaderMap, subject: Subject) -> Response {
    let Ok(slot) = Arc::clone(&page.readers).try_acquire_owned() else {
        return full(&headers);
    };
    let reader = Reader::new(page, subject, slot);
    Sse::new(futures::stream::unfold(reader, Reader::next)).into_response()
}

/// There is no slot for another reader. The script of a page cannot see the status of a stream of
/// events, so it gets an event.
fn full(headers: &HeaderMap) -> Response {
    let message = format!("{MAX_READERS} pages are already open, which is the limit");
    let accepted = headers.get(header::ACCEPT).map(HeaderValue::as_bytes);
    if accepted != Some(b"text/event-stream") {
        return (StatusCode::SERVICE_UNAVAILABLE, format!("{message}\n")).into_response();
    }
    let event = Event::default().event("full").data(message);
    let once = async move { Ok::<_, Infallible>(event) };
    Sse::new(futures::stream::once(once)).into_response()
}

/// A reader of the page.
struct Reader {
    page: StatusPage,
    subject: Subject,
    changes: watch::Receiver<u64>,
    leading: watch::Receiver<bool>,
    /// Digest of the state that was sent last.
    sent: Option<u64>,
    /// Nothing is rendered before this time.
    rests_until: Instant,
    _slot: OwnedSemaphorePermit,
}

impl Reader {
    fn new(page: StatusPage, subject: Subject, slot: OwnedSemaphorePermit) -> Self {
        Self {
            changes: page.board.subscribe_changes(),
            leading: page.board.subscribe_leading(),
            page,
            subject,
            sent: None,
            rests_until: Instant::now(),
            _slot: slot,
        }
    }

    /// The next event; `None` at the shutdown.
    async fn next(mut self) -> Option<(Result<Event, RenderError>, Self)> {
        let shutdown = self.page.shutdown.clone();
        let event = shutdown.run_until_cancelled(self.event()).await?;
        Some((event, self))
    }

    async fn event(&mut self) -> Result<Event, RenderError> {
        let silent_at = Instant::now() + ALIVE;
        loop {
            sleep_until(self.rests_until).await;
            // Marked before reading, so that later changes wake this task.
            self.changes.borrow_and_update();
            self.leading.borrow_and_update();
            let seen = self.group();
            let state = self.page.render(&self.subject).await?;
            let digest = digest(&state);
            self.rests_until = Instant::now() + PACE;
            if self.sent.replace(digest) != Some(digest) {
                return Ok(Event::default().data(state));
            }
            if Instant::now() >= silent_at {
                return Ok(Event::default().event("alive").data("-"));
            }
            self.wait(seen, silent_at).await;
        }
    }

    /// Ends when something may have changed, and in time for the next sign of life.
    async fn wait(&mut self, seen: Option<Arc<Snapshot>>, silent_at: Instant) {
        loop {
            tokio::select! {
                // The board lives as long as this does.
                _ = self.changes.changed() => {}
                _ = self.leading.changed() => return,
                () = sleep_until(silent_at) => return,
            }
            let same = match (&seen, &self.group()) {
                (Some(seen), Some(now)) => Arc::ptr_eq(seen, now),
                _ => false,
            };
            if !same {
                return;
            }
        }
    }

    /// The state of the group, if the reader looks at one group.
    fn group(&self) -> Option<Arc<Snapshot>> {
        match &self.subject {
            Subject::Groups { .. } => None,
            Subject::Group(key) => self.page.board.snapshot(key),
        }
    }
}

fn digest(state: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    state.hash(&mut hasher);
    hasher.finish()
}
