//! One watch, which lasts until its caller may no longer watch.

use std::sync::Arc;
use std::time::Duration;

use lockstep_proto::platform::v1 as pb;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::authorize::{self, Authorizer, Caller};
use super::error_details::{CallError, Reason};
use super::follow::Follower;
use super::watch_slots::WatchSlot;
use crate::controllers::restart::board::Filter;

/// Time between two checks that the caller may still watch.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// What a watch yields: the next message, or why it ends.
pub(super) type Event = Result<pb::WatchGroupsResponse, Status>;

/// An open watch.
pub(super) struct Watching {
    follower: Follower,
    permission: Permission,
    shutdown: CancellationToken,
    _slot: WatchSlot,
}

impl Watching {
    /// A watch of this caller, which was just authorized.
    pub(super) fn new(
        follower: Follower,
        filter: Filter,
        (caller, authorizer): (Caller, Arc<dyn Authorizer>),
        shutdown: CancellationToken,
        slot: WatchSlot,
    ) -> Self {
        Self {
            follower,
            permission: Permission {
                filter,
                caller,
                authorizer,
                ask_at: Instant::now() + ASK_AGAIN,
            },
            shutdown,
            _slot: slot,
        }
    }

    pub(super) async fn next(&mut self) -> Event {
        let Self {
            follower,
            permission,
            shutdown,
            ..
        } = self;
        // It keeps its place in line while its caller is checked.
        let mut event = std::pin::pin!(follower.next());
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => {
                    let message = "this replica of the control plane is shutting down";
                    return Err(CallError::new(Reason::ShuttingDown, message).into());
                }
                () = sleep_until(permission.ask_at) => {
                    let mut asked = std::pin::pin!(permission.ask_again());
                    tokio::select! {
                        biased;
                        allowed = &mut asked => allowed?,
                        // A slow API server must not make it block the line.
                        event = &mut event => {
                            asked.await?;
                            return Ok(event);
                        }
                    }
                }
                event = &mut event => return Ok(event),
            }
        }
    }
}

/// The permission of a caller to watch.
struct Permission {
    filter: Filter,
    caller: Caller,
    authorizer: Arc<dyn Authorizer>,
    ask_at: Instant,
}

impl Permission {
    /// Checks the permission again. An API server that does not answer ends no watch, since it was
    /// allowed before.
    async fn ask_again(&mut self) -> Result<(), Status> {
        self.ask_at = Instant::now() + ASK_AGAIN;
        let Filter { namespace, name } = &self.filter;
        match self
            .authorizer
            .authorize(&self.caller, "watch", namespace, name)
            .await
        {
            Ok(()) | Err(authorize::Refusal::Unavailable(_) | authorize::Refusal::TooMany) => Ok(()),
            Err(refusal) => {
                self.authorizer.refused(&self.caller, &refusal);
                Err(refusal.status("watch", namespace, name))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use async_trait::async_trait;
    use tonic::Code;

    use super::authorize::Refusal;
    use super::*;
    use crate::controllers::restart::board::Board;
    use crate::endpoints::platform::convert::Detail;
    use crate::endpoints::platform::large::NamespaceLines;
    use crate::endpoints::platform::watch_slots::WatchSlots;

    /// Answers in this order, the last one first; and who was refused.
    #[derive(Default)]
    struct Answers {
        left: Mutex<Vec<Result<(), Refusal>>>,
        refused: Mutex<Vec<String>>,
    }

    #[async_trait]
    impl Authorizer for Answers {
        async fn authorize(&self, _: &Caller, _: &'static str, _: &str, _: &str) -> Result<(), Refusal> {
            self.left.lock().unwrap().pop().unwrap()
        }

        fn refused(&self, _: &Caller, refusal: &Refusal) {
            self.refused.lock().unwrap().push(refusal.to_string());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_cannot_be_checked_watches_on_and_is_not_refused() {
        let silent = kube::Error::LinesCodecMaxLineLengthExceeded;
        let answers = Arc::new(Answers::default());
        answers.left.lock().unwrap().extend([
            Err(Refusal::Unknown),
            Ok(()),
            Err(Refusal::Unavailable(Box::new(silent))),
            Err(Refusal::TooMany),
        ]);
        let board = Board::new();
        let filter = Filter {
            namespace: String::new(),
            name: String::new(),
        };
        let caller = Caller {
            metadata: tonic::metadata::MetadataMap::new(),
            address: String::new(),
        };
        let mut watching = Watching::new(
            Follower::new(
                Arc::clone(&board),
                filter.clone(),
                Detail::Full,
                NamespaceLines::default().of(""),
            ),
            filter,
            (caller, Arc::clone(&answers) as Arc<dyn Authorizer>),
            CancellationToken::new(),
            WatchSlots::default().take("").unwrap(),
        );
        watching.next().await.unwrap();
        let began = Instant::now();
        let ended = watching.next().await.unwrap_err();
        assert_eq!(ended.code(), Code::Unauthenticated, "{ended}");
        assert_eq!(began.elapsed(), 4 * ASK_AGAIN);
        assert_eq!(*answers.refused.lock().unwrap(), [Refusal::Unknown.to_string()]);
    }
}
