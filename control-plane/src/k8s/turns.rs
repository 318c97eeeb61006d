//! Limits how much expensive work runs at once, with a share for each namespace or other party, so that one with many requests never takes more than its share.
//!
//! Promises: at most as many are taken at once as there are; of these a namespace has its part; who asks for more than that part waits in line with
//! others of the same namespace alone. A turn may weigh more than one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[cfg(test)]
mod tests;

/// Hands out turns.
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    of_one: u32,
    /// Of the namespaces that have some, or wait.
    lines: Mutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

impl Turns {
    /// So many at once, and of these so many of one namespace.
    pub(crate) fn new(all: u32, of_one: u32) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all as usize)),
            of_one: of_one.min(all),
            lines: Mutex::default(),
        }
    }

    fn line(&self, namespace: &str) -> Arc<Semaphore> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|_, line| Arc::strong_count(line) > 1);
        let line = lines
            .entry(namespace.to_owned())
            .or_insert_with(|| Arc::new(Semaphore::new(self.of_one as usize)));
        Arc::clone(line)
    }

    /// A turn that weighs so much, or all that the namespace may have where that is less, if it can be had now.
    pub(crate) fn try_take(&self, namespace: &str, weight: u32) -> Option<Turn> {
        let weight = weight.clamp(1, self.of_one);
        let own = self.line(namespace).try_acquire_many_owned(weight).ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_many_owned(weight).ok()?;
        Some(Turn {
            _own: Some(own),
            _of_all: Some(of_all),
        })
    }

    /// A turn that weighs so much, or all that the namespace may have where that is less. Cancel-safe, but for the place in line.
    pub(crate) async fn take(&self, namespace: &str, weight: u32) -> Turn {
        let weight = weight.clamp(1, self.of_one);
        // Neither is ever closed.
        let own = self.line(namespace).acquire_many_owned(weight).await.ok();
        let of_all = Arc::clone(&self.all).acquire_many_owned(weight).await.ok();
        Turn {
            _own: own,
            _of_all: of_all,
        }
    }
}
