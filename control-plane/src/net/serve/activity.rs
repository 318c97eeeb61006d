//! When a client of one connection was last heard of.

use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use tokio::time::Instant;

/// When something happened last: the less, the quieter the client. One that waits for an answer is
/// never quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LastActivity {
    /// True if a request is under way.
    busy: bool,
    /// Since when that is so.
    since: Instant,
    /// True if there has been a request.
    asked: bool,
    /// A request has succeeded on this connection. A client that sends only the beginning of
    /// requests never gets there.
    served: bool,
}

impl LastActivity {
    /// True if a request was answered with success.
    pub(super) fn served(self) -> bool {
        self.served
    }
}

/// What a client of one connection does.
#[derive(Debug)]
pub(crate) struct Activity(watch::Sender<LastActivity>);

impl Default for Activity {
    fn default() -> Self {
        let connected = LastActivity {
            busy: false,
            since: Instant::now(),
            asked: false,
            served: false,
        };
        Self(watch::Sender::new(connected))
    }
}

impl Activity {
    pub(super) fn last(&self) -> LastActivity {
        *self.0.borrow()
    }

    /// A request is under way until what is returned is dropped.
    pub(super) fn request(&self) -> Request<'_> {
        self.note(|last| last.busy = true);
        Request {
            of: self,
            succeeds: false,
        }
    }

    /// Ends after this time if there has been no request until then.
    pub(super) async fn nothing_asked_within(&self, time: Duration) {
        tokio::time::sleep(time).await;
        if self.last().asked {
            std::future::pending().await
        }
    }

    /// A request begins or ends now.
    fn note(&self, change: impl FnOnce(&mut LastActivity)) {
        self.0.send_modify(|last| {
            last.since = Instant::now();
            last.asked = true;
            change(last);
        });
    }
}

/// A request that is under way.
pub(super) struct Request<'a> {
    of: &'a Activity,
    succeeds: bool,
}

impl Request<'_> {
    /// It is answered with this status.
    pub(super) fn answered(&mut self, status: StatusCode) {
        self.succeeds = status.is_success();
    }
}

impl Drop for Request<'_> {
    fn drop(&mut self) {
        self.of.note(|last| {
            last.busy = false;
            last.served |= self.succeeds;
        });
    }
}
