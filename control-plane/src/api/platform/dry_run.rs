//! Dry runs: what a restart would do, as the group's task says.

use tonic::Status;

use super::error_details::{CallError, Reason};
use crate::controllers::restart::board::Key;
use crate::controllers::restart::board::question::{
    self, Answer, AskError, QuestionSender, RequestedRestart, WAITING,
};

/// Asks, and waits for the answer.
///
/// # Errors
/// RESOURCE_EXHAUSTED where too many wait; ABORTED where the group is given up meanwhile.
pub(super) async fn ask(asks: &QuestionSender, key: &Key, wish: RequestedRestart) -> Result<Answer, Status> {
    let answer = question::ask(asks, wish).await;
    answer.map_err(|unanswered| match unanswered {
        AskError::TooMany => {
            let message = format!("more than {WAITING} dry runs of this group at once");
            let refused = CallError::new(Reason::TooManyDryRuns, message);
            refused.of_key(key).with("limit", WAITING.to_string()).into()
        }
        AskError::GivenUp => given_up(key),
    })
}

/// Nobody answers for the group any more.
pub(super) fn given_up(key: &Key) -> Status {
    let message = "the JobSet is not looked after any more";
    CallError::new(Reason::JobsetChanged, message).of_key(key).into()
}
