//! What a reader sees: the board at one moment, rendered as JSON.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lockstep_core::restart::GroupPhase;
use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

use super::request::Subject;
use super::{REST, StatusPage};
use crate::controllers::restart::board::{Board, Filter, Key, Snapshot};
use crate::endpoints::platform::convert::{self, Detail};

mod group;
mod restarts;

use group::GroupView;
use restarts::Restarts;

/// Groups in a list. A search finds the others.
pub(super) const ROWS: usize = 500;
/// Groups that are read while the board is locked.
const STEP: usize = 500;

/// A whole state.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct State {
    /// The replica that serves this, and the namespace of the product.
    replica: String,
    namespace: String,
    /// The port of the page.
    port: u16,
    /// True if it leads. A replica that does not lead knows no groups.
    leads: bool,
    /// The leading replica, if it is known.
    leader: Option<String>,
    #[serde(flatten)]
    content: Content,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase", untagged)]
enum Content {
    #[serde(rename_all = "camelCase")]
    Groups {
        groups: Vec<Summary>,
        /// How many groups the search has found. If not all are shown, those that are not in sync
        /// are chosen first.
        found: usize,
        /// How many groups there are.
        all: usize,
    },
    #[serde(rename_all = "camelCase")]
    Group {
        group: Option<Box<GroupView>>,
        restarts: Restarts,
    },
}

/// The summary of a group.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Summary {
    namespace: String,
    name: String,
    uid: String,
    kind: &'static str,
    phase: &'static str,
    generation: u64,
    released: u64,
    restarts: u32,
    max_restarts: u32,
    workers_expected: u32,
    workers_up: u32,
    last_level: String,
    last_cause: Option<Cause>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Cause {
    reason: String,
    message: String,
    /// Milliseconds since the Unix epoch; 0: not known.
    at: i64,
}

/// Why there is no state.
#[derive(Debug, thiserror::Error)]
#[error("the state could not be rendered: {0}")]
pub(super) struct RenderError(String);

impl IntoResponse for RenderError {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{self}\n")).into_response()
    }
}

impl StatusPage {
    /// Renders the subject as JSON, in turn, and on a thread that may block.
    pub(super) async fn render(&self, subject: &Subject) -> Result<Arc<str>, RenderError> {
        let failed = |error: &dyn std::fmt::Display| RenderError(error.to_string());
        let turn = Arc::clone(&self.turn)
            .acquire_owned()
            .await
            .map_err(|error| failed(&error))?;
        let (page, subject) = (self.clone(), subject.clone());
        // The turn moves along, so that it lasts until the end even if the reader has gone.
        let rendering = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let state = view(&page, &subject);
            (serde_json::to_string(&state), begun.elapsed(), turn)
        });
        let (text, took, turn) = rendering.await.map_err(|error| failed(&error))?;
        tokio::spawn(async move {
            tokio::time::sleep(took.saturating_mul(REST)).await;
            drop(turn);
        });
        Ok(text.map_err(|error| failed(&error))?.into())
    }
}

/// The current state of the subject.
fn view(page: &StatusPage, subject: &Subject) -> State {
    let board = &page.board;
    let content = match subject {
        Subject::Groups { search } => groups(board, search),
        Subject::Group(key) => match board.snapshot_with_history(key) {
            Some((state, history)) => Content::Group {
                group: Some(Box::new(GroupView::new(key, &state))),
                restarts: Restarts::new(&history),
            },
            None => Content::Group {
                group: None,
                restarts: Restarts::default(),
            },
        },
    };
    State {
        replica: page.replica.name.clone(),
        namespace: page.replica.namespace.clone(),
        port: page.port,
        leads: board.is_leading(),
        leader: (page.leader)(),
        content,
    }
}

fn groups(board: &Board, search: &str) -> Content {
    let mut found: Vec<(Key, Arc<Snapshot>)> = Vec::new();
    let (mut all, mut after, mut more) = (0, None, true);
    while more {
        let page;
        (page, more) = board.list(&Filter::default(), after, STEP);
        all += page.len();
        after = page.last().map(|(key, _)| key.clone());
        found.extend(
            page.into_iter()
                .filter(|(key, _)| search.is_empty() || full_name(key).contains(search)),
        );
    }
    let count = found.len();
    if count > ROWS {
        found.sort_by_key(|(_, state)| state.phase == GroupPhase::InSync);
        found.truncate(ROWS);
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
    }
    Content::Groups {
        groups: found
            .iter()
            .map(|(key, state)| summary(convert::group(key, state, Detail::WithoutWorkers), state))
            .collect(),
        found: count,
        all,
    }
}

fn full_name(key: &Key) -> String {
    format!("{}/{}", key.namespace, key.name)
}

fn summary(group: pb::Group, state: &Snapshot) -> Summary {
    Summary {
        kind: match group.kind() {
            pb::Kind::Plain => "Plain",
            pb::Kind::Supervised | pb::Kind::Unspecified => "Supervised",
        },
        phase: state.phase.as_str(),
        namespace: group.namespace,
        name: group.name,
        uid: group.uid,
        generation: group.generation,
        released: group.released,
        restarts: group.restarts,
        max_restarts: group.max_restarts,
        workers_expected: group.workers_expected,
        workers_up: group.workers_up,
        last_level: group.last_level,
        last_cause: group.last_cause.map(cause),
    }
}

fn cause(cause: pb::Cause) -> Cause {
    Cause {
        reason: cause.reason,
        message: cause.message,
        at: millis(cause.time_unix_nanos),
    }
}

/// A browser's numbers cannot hold nanoseconds.
fn millis(nanos: i64) -> i64 {
    nanos / 1_000_000
}
