//! Dry runs: what a restart would do, as the group's task says.

use std::sync::Arc;

use lockstep_proto::platform::v1 as pb;
use tonic::Status;

use super::{PlatformService, not_leading};
use crate::api::platform::convert::{self, Detail};
use crate::api::platform::error_details::{CallError, Reason};
use crate::api::platform::large::{Size, Unread};
use crate::controllers::restart::board::question::{
    self, Answer, AskError, QuestionSender, RequestedRestart, WAITING,
};
use crate::controllers::restart::board::{Key, Snapshot};

/// What the request would do, with the room that the answer takes.
pub(super) async fn try_out(
    service: &PlatformService,
    key: &Key,
    state: Arc<Snapshot>,
    wish: RequestedRestart,
) -> Result<(pb::DryRun, Option<Unread>), Status> {
    let asks = service.board.asks(key).ok_or_else(|| given_up(key))?;
    let size = Size::of(&state, Detail::Full);
    drop(state);
    let line = service.lines.of(&key.namespace);
    let mut room = line.room(size).await;
    let answer = ask(&asks, key, wish).await?;
    // It may have grown meanwhile.
    let size = match Size::of_workers(answer.observed.workers.len(), Detail::Full) {
        now if size.holds(now) => size,
        now => {
            drop(room.take());
            room = line.room(now).await;
            now
        }
    };
    let tell = move || convert::dry_run(&answer.preview, &answer.observed);
    let told = if size.is_large() {
        line.in_turn(tell).await.ok_or_else(not_leading)?
    } else {
        tell()
    };
    Ok((told, room))
}

/// Asks, and waits for the answer.
///
/// # Errors
/// RESOURCE_EXHAUSTED where too many wait; ABORTED where the group is given up meanwhile.
async fn ask(asks: &QuestionSender, key: &Key, wish: RequestedRestart) -> Result<Answer, Status> {
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
fn given_up(key: &Key) -> Status {
    let message = "the JobSet is not looked after any more";
    CallError::new(Reason::JobsetChanged, message).of_key(key).into()
}
