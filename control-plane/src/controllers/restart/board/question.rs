//! Questions to group tasks: what would a restart do?
//!
//! The group's task, which owns the coordinator, answers between two of its steps. At most
//! [`WAITING`] questions wait for it.

use std::sync::Arc;

use lockstep_api::WorkerRestartRequest;
use lockstep_core::restart::{Coordinator, Observed, Preview, UnixNanos};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{mpsc, oneshot};

/// The most questions that wait for one group's task.
pub(crate) const WAITING: usize = 8;

/// The restart in question.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestedRestart {
    /// All workers, with this token.
    All(String),
    /// Only these workers.
    Workers(WorkerRestartRequest),
}

/// A question what a restart would do. The caller waits for the answer.
pub struct Question {
    wish: RequestedRestart,
    asker: oneshot::Sender<Answer>,
}

/// What the restart would do, and the observation that the answer is based on.
pub(crate) struct Answer {
    pub(crate) preview: Preview,
    pub(crate) observed: Arc<Observed>,
}

/// Why there is no answer.
pub(crate) enum AskError {
    /// Too many questions are waiting.
    TooMany,
    /// The group's task has ended.
    GivenUp,
}

impl Question {
    /// What the coordinator would do.
    #[must_use]
    pub fn preview(&self, coordinator: &Coordinator, observed: &Observed, now: UnixNanos) -> Preview {
        match &self.wish {
            RequestedRestart::All(token) => coordinator.preview(observed, token, now),
            RequestedRestart::Workers(request) => coordinator.preview_worker_restarts(observed, request, now),
        }
    }

    #[cfg(test)]
    pub(crate) fn wish(&self) -> &RequestedRestart {
        &self.wish
    }

    /// Sends the answer, if the caller still waits.
    pub fn answer(self, preview: Preview, observed: Arc<Observed>) {
        let _ = self.asker.send(Answer { preview, observed });
    }
}

/// Sends questions to a group's task.
pub(crate) type QuestionSender = mpsc::Sender<Question>;

pub(super) fn channel() -> (QuestionSender, mpsc::Receiver<Question>) {
    mpsc::channel(WAITING)
}

/// Asks, and waits for the answer. Cancel-safe.
///
/// # Errors
/// [`AskError`].
pub(crate) async fn ask(questions: &QuestionSender, wish: RequestedRestart) -> Result<Answer, AskError> {
    let (asker, answer) = oneshot::channel();
    questions
        .try_send(Question { wish, asker })
        .map_err(|error| match error {
            TrySendError::Full(_) => AskError::TooMany,
            TrySendError::Closed(_) => AskError::GivenUp,
        })?;
    answer.await.map_err(|_| AskError::GivenUp)
}
