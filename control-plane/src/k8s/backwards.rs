//! The API server has gone back: its store was restored from a backup under this process.
//!
//! What is cached then no longer exists, and watches ask for versions that are yet to come. So a
//! task that sees a version fall says so, and the process ends: the next one reads everything
//! again.

use std::sync::Arc;

use tokio::sync::watch;

/// Tells the leader. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Backwards(Arc<watch::Sender<Option<String>>>);

impl Default for Backwards {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::new(None)))
    }
}

impl Backwards {
    /// A version of an object has fallen, by a read that no cache has answered. The first one
    /// counts.
    pub(crate) fn tell(&self, what: String) {
        self.0.send_if_modified(|told| {
            let is_first = told.is_none();
            told.get_or_insert(what);
            is_first
        });
    }

    /// Resolves once one has fallen, with which. Cancel-safe.
    pub(crate) async fn told(&self) -> String {
        let mut receiver = self.0.subscribe();
        let told = receiver.wait_for(Option::is_some).await;
        let told = told.ok().and_then(|told| told.clone());
        match told {
            Some(what) => what,
            // Never: the sender lives as long as this does.
            None => std::future::pending().await,
        }
    }
}
