//! Who looks for processes to kill: one at a time, so that all of them together take no more than one core, and one of a namespace, so that one that asks for many
//! containers has others wait for one look at most.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Hands out turns, in the order of those who ask.
#[derive(Debug, Clone)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// Of namespaces that have one, or wait.
    lines: Arc<Mutex<BTreeMap<String, Arc<Semaphore>>>>,
}

/// A turn to look, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    own: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
}

/// The turn of a namespace, whose other containers wait.
pub(super) struct Own(#[expect(dead_code, reason = "it is held")] Option<OwnedSemaphorePermit>);

impl Default for Turns {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(1)),
            lines: Arc::default(),
        }
    }
}

impl Turns {
    /// Waits for a turn of this namespace.
    pub(super) async fn take(&self, namespace: &str) -> Turn {
        // Neither is ever closed.
        let own = self.line(namespace).acquire_owned().await.ok();
        let of_all = Arc::clone(&self.all).acquire_owned().await.ok();
        Turn { own, _of_all: of_all }
    }

    fn line(&self, namespace: &str) -> Arc<Semaphore> {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|_, line| Arc::strong_count(line) > 1);
        let line = lines.entry(namespace.to_owned());
        Arc::clone(line.or_insert_with(|| Arc::new(Semaphore::new(1))))
    }
}

impl Turn {
    /// Lets others look. Those of the same namespace wait until what is returned is dropped.
    pub(super) fn looked(self) -> Own {
        Own(self.own)
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn who_asks_for_many_containers_has_others_wait_for_one_look() {
        let turns = Turns::default();
        let first = turns.take("loud").await;
        let mut more: Vec<_> = (0..80).map(|_| Box::pin(turns.take("loud"))).collect();
        for waits in &mut more {
            assert!(waits.now_or_never().is_none());
        }
        let mut quiet = Box::pin(turns.take("quiet"));
        assert!((&mut quiet).now_or_never().is_none(), "one looks at a time");
        let own = first.looked();
        drop((&mut quiet).now_or_never().expect("it is next"));
        drop(own);
        drop(quiet);
        drop(more);
        drop(turns.take("quiet").await);
        assert_eq!(turns.lines.lock().unwrap().len(), 1, "others are forgotten");
    }
}
