//! Dry runs: the group's task tells what a restart would do.

use std::sync::Arc;

use lockstep_proto::platform::v1 as pb;
use tonic::Status;

use super::{PlatformService, not_leading};
use crate::controllers::restart::board::question::{
    self, Answer, AskError, QuestionSender, RequestedRestart, WAITING,
};
use crate::controllers::restart::board::{Key, Snapshot};
use crate::endpoints::platform::convert::{self, Detail};
use crate::endpoints::platform::error_details::{CallError, Reason};
use crate::endpoints::platform::large::{Size, Unread};

/// What the request would do, and the room that the answer takes.
pub(super) async fn dry_run(
    service: &PlatformService,
    key: &Key,
    state: Arc<Snapshot>,
    wish: RequestedRestart,
) -> Result<(pb::DryRun, Option<Unread>), Status> {
    let questions = service.board.question_sender(key).ok_or_else(|| given_up(key))?;
    let size = Size::of(&state, Detail::Full);
    drop(state);
    let line = service.lines.of(&key.namespace);
    let mut room = line.room(size).await;
    let answer = ask(&questions, key, wish).await?;
    // The group may have grown meanwhile.
    let size = match Size::of_workers(answer.observed.workers.len(), Detail::Full) {
        now if size.holds(now) => size,
        now => {
            drop(room.take());
            room = line.room(now).await;
            now
        }
    };
    let convert = move || convert::dry_run(&answer.preview, &answer.observed);
    let dry_run = if size.is_large() {
        line.in_turn(convert).await.ok_or_else(not_leading)?
    } else {
        convert()
    };
    Ok((dry_run, room))
}

/// Asks, and waits for the answer.
///
/// # Errors
/// RESOURCE_EXHAUSTED if too many questions wait; ABORTED if the group's task ends meanwhile.
async fn ask(questions: &QuestionSender, key: &Key, wish: RequestedRestart) -> Result<Answer, Status> {
    let answer = question::ask(questions, wish).await;
    answer.map_err(|unanswered| match unanswered {
        AskError::TooMany => {
            let message = format!("more than {WAITING} dry runs of this group at once");
            let refused = CallError::new(Reason::TooManyDryRuns, message);
            refused.of_key(key).with("limit", WAITING.to_string()).into()
        }
        AskError::GivenUp => given_up(key),
    })
}

/// The group has no task any longer.
fn given_up(key: &Key) -> Status {
    let message = "the JobSet is no longer managed by this replica";
    CallError::new(Reason::JobsetChanged, message).of_key(key).into()
}
