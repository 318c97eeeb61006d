//! Tracks when a connection was last used.

use std::time::Duration;

use http::StatusCode;
use tokio::sync::watch;
use tokio::time::Instant;

/// The last activity of a connection. A smaller value means a quieter client; a client that waits
/// for an answer is never quiet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LastActivity {
    /// True while a request is in progress.
    busy: bool,
    /// When that last changed.
    since: Instant,
    /// True once there was a request.
    asked: bool,
    /// True once a request succeeded. A client that sends only the beginning of requests never gets
    /// there.
    served: bool,
}

impl LastActivity {
    /// True once a request was answered with success.
    pub(super) fn served(self) -> bool {
        self.served
    }
}

/// The activity of one connection.
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

    /// Starts a request, which lasts until the returned value is dropped.
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

    /// Records that a request begins or ends now.
    fn note(&self, change: impl FnOnce(&mut LastActivity)) {
        self.0.send_modify(|last| {
            last.since = Instant::now();
            last.asked = true;
            change(last);
        });
    }
}

/// A request in progress.
pub(super) struct Request<'a> {
    of: &'a Activity,
    succeeds: bool,
}

impl Request<'_> {
    /// Records the status of the answer.
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
