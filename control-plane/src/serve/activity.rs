//! When a client of one connection was last heard of.

use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

/// When something happened last: the less, the quieter the client. One that waits for an answer is never quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Last {
    /// Whether a request is under way.
    busy: bool,
    /// Since when that is so.
    since: Instant,
    /// Whether there has been a request.
    asked: bool,
}

/// What a client of one connection does.
#[derive(Debug)]
pub(crate) struct Activity(watch::Sender<Last>);

impl Default for Activity {
    fn default() -> Self {
        let connected = Last {
            busy: false,
            since: Instant::now(),
            asked: false,
        };
        Self(watch::Sender::new(connected))
    }
}

impl Activity {
    pub(super) fn last(&self) -> Last {
        *self.0.borrow()
    }

    /// A request is under way until what is returned is dropped.
    pub(super) fn request(&self) -> Request<'_> {
        self.now(true);
        Request(self)
    }

    /// Ends after this time if there has been no request until then.
    pub(super) async fn nothing_asked_within(&self, time: Duration) {
        tokio::time::sleep(time).await;
        if self.last().asked {
            std::future::pending().await
        }
    }

    fn now(&self, busy: bool) {
        self.0.send_replace(Last {
            busy,
            since: Instant::now(),
            asked: true,
        });
    }
}

/// A request that is under way.
pub(super) struct Request<'a>(&'a Activity);

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.0.now(false);
    }
}
