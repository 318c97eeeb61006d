//! The view of a reader: the board at one moment.

use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

use super::request::Subject;
use super::{REST, StatusPage};
use crate::api::platform::convert::{self, Detail};
use crate::controllers::restart::board::{Board, Filter, Key, Snapshot};

mod group;
mod restarts;

use group::GroupView;
use restarts::Restarts;

/// Groups of a list. Who looks for another one searches.
pub(super) const ROWS: usize = 500;
/// Groups that are looked through while the board is held.
const STEP: usize = 500;

/// A whole state.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct State {
    /// The replica that says this, and the namespace of the product.
    replica: String,
    namespace: String,
    /// Where this replica serves the page.
    port: u16,
    /// True if it leads. A replica that does not lead knows no groups.
    leads: bool,
    /// The one that leads, as far as is known.
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
        /// How many the search has found. Where that is more than are shown, those that are not in
        /// sync are among them before all others.
        found: usize,
        /// How many there are.
        all: usize,
    },
    #[serde(rename_all = "camelCase")]
    Group {
        group: Option<Box<GroupView>>,
        restarts: Restarts,
    },
}

/// One group in short.
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
#[error("the state could not be made: {0}")]
pub(super) struct Unmade(String);

impl IntoResponse for Unmade {
    fn into_response(self) -> Response {
        (StatusCode::INTERNAL_SERVER_ERROR, format!("{self}\n")).into_response()
    }
}

impl StatusPage {
    /// What the reader looks at, as it is now: JSON. It is made when nobody else's is, and off the
    /// threads that have to be quick.
    pub(super) async fn make(&self, subject: &Subject) -> Result<Arc<str>, Unmade> {
        let unmade = |error: &dyn std::fmt::Display| Unmade(error.to_string());
        let turn = Arc::clone(&self.turn)
            .acquire_owned()
            .await
            .map_err(|error| unmade(&error))?;
        let (page, subject) = (self.clone(), subject.clone());
        // The turn goes along: a reader who does not wait for the end makes no room for another one
        // before that.
        let making = tokio::task::spawn_blocking(move || {
            let begun = Instant::now();
            let state = view(&page, &subject);
            (serde_json::to_string(&state), begun.elapsed(), turn)
        });
        let (text, took, turn) = making.await.map_err(|error| unmade(&error))?;
        tokio::spawn(async move {
            tokio::time::sleep(took.saturating_mul(REST)).await;
            drop(turn);
        });
        Ok(text.map_err(|error| unmade(&error))?.into())
    }
}

/// What the board shows now.
fn view(page: &StatusPage, subject: &Subject) -> State {
    let board = &page.board;
    let content = match subject {
        Subject::Groups { search } => groups(board, search),
        Subject::Group(key) => match board.history(key) {
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
        leads: board.leads(),
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
                .filter(|(key, _)| search.is_empty() || place(key).contains(search)),
        );
    }
    let count = found.len();
    if count > ROWS {
        found.sort_by_key(|(_, state)| state.state == "InSync");
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

fn place(key: &Key) -> String {
    format!("{}/{}", key.namespace, key.name)
}

fn summary(group: pb::Group, state: &Snapshot) -> Summary {
    Summary {
        kind: match group.kind() {
            pb::Kind::Plain => "Plain",
            pb::Kind::Supervised | pb::Kind::Unspecified => "Supervised",
        },
        phase: state.state,
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
