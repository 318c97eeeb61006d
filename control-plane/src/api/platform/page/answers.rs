//! Answers with states: one state, or a stream of them.

use std::convert::Infallible;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};

use super::events::Reader;
use super::request::Subject;
use super::view::RenderError;
use super::{MAX_READERS, StatusPage};

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
