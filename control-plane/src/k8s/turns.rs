//! Limits how much expensive work runs at once, with a share for each namespace or other party, so
//! that one with many requests never takes more than its share.
//!
//! Promises: no more turns are taken at once than there are, and no more by one namespace than its
//! share. Requests beyond the share wait only for others of the same namespace. A turn may weigh
//! more than one.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[cfg(test)]
mod tests;

/// Hands out turns.
pub(crate) struct Turns {
    all: Arc<Semaphore>,
    of_one: u32,
    lines: Arc<Lines>,
}

/// The lines of namespaces that have turns, or wait for some.
type Lines = Mutex<BTreeMap<String, Line>>;

#[derive(Debug)]
struct Line {
    turns: Arc<Semaphore>,
    /// Turns that are taken or waited for.
    users: usize,
}

/// A turn, until it is dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    _own: Option<OwnedSemaphorePermit>,
    _of_all: Option<OwnedSemaphorePermit>,
    /// Dropped last: a line that has gone has no turns taken.
    _line: LineUser,
}

/// Keeps the line of a namespace until it is dropped.
#[derive(Debug)]
struct LineUser {
    lines: Arc<Lines>,
    namespace: String,
    turns: Arc<Semaphore>,
}

impl Drop for LineUser {
    fn drop(&mut self) {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(line) = lines.get_mut(&self.namespace) {
            line.users -= 1;
            if line.users == 0 {
                lines.remove(&self.namespace);
            }
        }
    }
}

impl Turns {
    /// So many at once, and of these so many of one namespace.
    pub(crate) fn new(all: u32, of_one: u32) -> Self {
        Self {
            all: Arc::new(Semaphore::new(all as usize)),
            of_one: of_one.min(all),
            lines: Arc::default(),
        }
    }

    fn line(&self, namespace: &str) -> LineUser {
        let mut lines = self.lines.lock().unwrap_or_else(PoisonError::into_inner);
        let line = lines.entry(namespace.to_owned()).or_insert_with(|| Line {
            turns: Arc::new(Semaphore::new(self.of_one as usize)),
            users: 0,
        });
        line.users += 1;
        LineUser {
            lines: Arc::clone(&self.lines),
            namespace: namespace.to_owned(),
            turns: Arc::clone(&line.turns),
        }
    }

    /// A turn of this weight, or of the namespace's whole share if that is less. `None`: it would
    /// have to wait.
    pub(crate) fn try_take(&self, namespace: &str, weight: u32) -> Option<Turn> {
        let weight = weight.clamp(1, self.of_one);
        let line = self.line(namespace);
        let own = Arc::clone(&line.turns).try_acquire_many_owned(weight).ok()?;
        let of_all = Arc::clone(&self.all).try_acquire_many_owned(weight).ok()?;
        Some(Turn {
            _own: Some(own),
            _of_all: Some(of_all),
            _line: line,
        })
    }

    /// Waits for a turn of this weight, or of the namespace's whole share if that is less.
    /// Cancel-safe; a cancelled caller loses its place in line.
    pub(crate) async fn take(&self, namespace: &str, weight: u32) -> Turn {
        let weight = weight.clamp(1, self.of_one);
        let line = self.line(namespace);
        // Neither is ever closed.
        let own = Arc::clone(&line.turns).acquire_many_owned(weight).await.ok();
        let of_all = Arc::clone(&self.all).acquire_many_owned(weight).await.ok();
        Turn {
            _own: own,
            _of_all: of_all,
            _line: line,
        }
    }
}
