//! Detects that the API server went back in time: its store was restored from a backup while this
//! process ran.
//!
//! The caches then hold objects that no longer exist, and watches ask for versions that do not
//! exist yet. So a task that sees a version fall reports it here and the process ends. The next
//! process reads everything again.

use std::sync::Arc;

use tokio::sync::watch;

/// Reports a fallen version to the leader. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Backwards(Arc<watch::Sender<Option<String>>>);

impl Default for Backwards {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Backwards {
    /// Reports that an object's version fell. Call this only after a read that no cache answered.
    /// Only the first report counts.
    pub(crate) fn tell(&self, what: String) {
        self.0.send_if_modified(|reported| {
            let is_first = reported.is_none();
            reported.get_or_insert(what);
            is_first
        });
    }

    /// Resolves with the first report. Cancel-safe.
    pub(crate) async fn reported(&self) -> String {
        let mut receiver = self.0.subscribe();
        let reported = receiver.wait_for(Option::is_some).await;
        let reported = reported.ok().and_then(|reported| reported.clone());
        match reported {
            Some(what) => what,
            // Unreachable: the sender lives as long as `self`.
            None => std::future::pending().await,
        }
    }
}
