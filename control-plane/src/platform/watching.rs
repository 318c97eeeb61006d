//! One watch, as long as its caller may watch.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::authorize::{self, Authorizer, Caller};
use super::board::Filter;
use super::follow::Follower;
use super::places::Place;
use super::refused::{Reason, Refused};
use super::service::Event;

/// Who watches is asked after this time again whether they still may.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// A watch under way.
pub(super) struct Watching {
    follower: Follower,
    filter: Filter,
    caller: Caller,
    authorizer: Arc<dyn Authorizer>,
    ask_at: Instant,
    shutdown: CancellationToken,
    _place: Place,
}

impl Watching {
    /// A watch by this caller, who may watch now.
    pub(super) fn new(
        follower: Follower,
        filter: Filter,
        (caller, authorizer): (Caller, Arc<dyn Authorizer>),
        shutdown: CancellationToken,
        place: Place,
    ) -> Self {
        Self {
            follower,
            filter,
            caller,
            authorizer,
            ask_at: Instant::now() + ASK_AGAIN,
            shutdown,
            _place: place,
        }
    }

    pub(super) async fn next(&mut self) -> Event {
        loop {
            tokio::select! {
                biased;
                () = self.shutdown.cancelled() => {
                    let message = "this replica of the control plane is shutting down";
                    return Err(Refused::new(Reason::ShuttingDown, message).into());
                }
                () = sleep_until(self.ask_at) => self.ask_again().await?,
                event = self.follower.next() => return Ok(event),
            }
        }
    }

    /// An API server that does not answer ends no watch: what stands was allowed.
    async fn ask_again(&mut self) -> Result<(), Status> {
        self.ask_at = Instant::now() + ASK_AGAIN;
        let Filter { namespace, name } = &self.filter;
        match self
            .authorizer
            .authorize(&self.caller, "watch", namespace, name)
            .await
        {
            Ok(()) | Err(authorize::Refusal::Unavailable(_) | authorize::Refusal::TooMany) => Ok(()),
            Err(refusal) => Err(refusal.status("watch", namespace, name)),
        }
    }
}
