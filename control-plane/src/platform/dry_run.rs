//! Questions to group tasks: what a restart would do.
//!
//! The task that owns the coordinator answers between two of its steps, with what it sees. A few questions wait for it, and no more.

use std::sync::Arc;

use lockstep_api::AloneRequest;
use lockstep_core::restart::{Coordinator, Observed, Preview, UnixNanos};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};
use tonic::Status;

use super::board::Key;
use super::refused::{Reason, Refused};

/// Questions that wait for one group's task.
const WAITING: usize = 8;

/// The request that would be made.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Wish {
    /// To restart all workers, with this token.
    All(String),
    /// To restart some of them alone.
    Some(AloneRequest),
}

/// What a restart would do, for somebody who waits for the answer.
pub struct Question {
    wish: Wish,
    asker: oneshot::Sender<Answer>,
}

/// What it would do, and what that was seen in.
pub(super) struct Answer {
    pub(super) preview: Preview,
    pub(super) observed: Arc<Observed>,
}

impl Question {
    /// What the coordinator would do.
    #[must_use]
    pub fn preview(&self, coordinator: &Coordinator, observed: &Observed, now: UnixNanos) -> Preview {
        match &self.wish {
            Wish::All(token) => coordinator.preview(observed, token, now),
            Wish::Some(request) => coordinator.preview_alone(observed, request, now),
        }
    }

    #[cfg(test)]
    pub(super) fn wish(&self) -> &Wish {
        &self.wish
    }

    /// Answers it. Who has gone is not waited for.
    pub fn answer(self, preview: Preview, observed: Arc<Observed>) {
        let _ = self.asker.send(Answer { preview, observed });
    }
}

/// The way to a group's task.
pub(super) type Asks = mpsc::Sender<Question>;

pub(super) fn channel() -> (Asks, mpsc::Receiver<Question>) {
    mpsc::channel(WAITING)
}

/// Asks, and waits for the answer.
///
/// # Errors
/// RESOURCE_EXHAUSTED where too many wait; ABORTED where the group is given up meanwhile.
pub(super) async fn ask(asks: &Asks, key: &Key, wish: Wish) -> Result<Answer, Status> {
    let (asker, answer) = oneshot::channel();
    match asks.try_send(Question { wish, asker }) {
        Ok(()) => {}
        Err(TrySendError::Full(_)) => {
            let message = format!("more than {WAITING} dry runs of this group at once");
            let refused = Refused::new(Reason::TooManyDryRuns, message);
            return Err(refused.of_key(key).with("limit", WAITING.to_string()).into());
        }
        Err(TrySendError::Closed(_)) => return Err(given_up(key)),
    }
    answer.await.map_err(|_| given_up(key))
}

/// Nobody answers for the group any more.
pub(super) fn given_up(key: &Key) -> Status {
    let message = "the JobSet is not looked after any more";
    Refused::new(Reason::JobsetChanged, message).of_key(key).into()
}
