//! Whether a replica can do what it is there for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a server of this replica can be called. Clones are the same one.
#[derive(Clone, Debug, Default)]
pub struct Ready(Arc<AtomicBool>);

impl Ready {
    /// Whether the server listens, with a certificate.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// It does, until the process ends.
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The servers that a replica is ready with, by their flags. One that is switched off is not awaited.
#[derive(Clone, Debug, Default)]
pub struct Awaited {
    /// The admission webhooks.
    pub webhooks: Option<Ready>,
    /// What node daemons connect to.
    pub hub: Option<Ready>,
}

impl Awaited {
    /// What cannot be called yet.
    pub(crate) fn missing(&self) -> Option<&'static str> {
        let is_missing = |server: &Option<Ready>| server.as_ref().is_some_and(|server| !server.is_ready());
        if is_missing(&self.webhooks) {
            Some("the webhooks are not served yet")
        } else if is_missing(&self.hub) {
            Some("the hub is not served yet")
        } else {
            None
        }
    }
}
