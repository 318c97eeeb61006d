//! Limits how many JobSets of one namespace are reconciled at once. A reconcile takes as long as
//! the API server needs to create 500 Jobs, and so a tenant with a few dozen large JobSets would
//! keep all others from being reconciled for minutes.
//!
//! Promises: at most [`AT_ONCE`] JobSets are reconciled at a time, and at most [`OF_ONE`] of one
//! namespace. Those that wait for their turn take it in the order in which they came, and others
//! need not wait for them. A namespace has at most [`IN_LINE`] that wait or are reconciled. At a
//! shutdown all waits end.

use std::time::Duration;

use lockstep_process::turns::{Turn, Turns};
use tokio_util::sync::CancellationToken;

#[cfg(test)]
mod tests;

/// JobSets that are reconciled or wait for it, of all namespaces.
pub(super) const PERMITS: u16 = 512;
/// The same, of one namespace. Any other is tried again after [`LATER`].
const IN_LINE: u32 = 64;
/// JobSets that are reconciled at a time.
const AT_ONCE: u32 = 32;
/// The same, of one namespace. Each may hold 4 MiB of Jobs that the API server has yet to take.
const OF_ONE: u32 = 8;
/// When a JobSet without a permit is tried again.
pub(super) const LATER: Duration = Duration::from_millis(200);

/// Hands out permits to reconcile.
pub(super) struct Permits {
    line: Turns,
    work: Turns,
    shutdown: CancellationToken,
}

/// A permit to reconcile, until it is dropped.
pub(super) struct Permit {
    _in_line: Turn,
    _at_work: Turn,
}

impl Permits {
    /// Hands out permits until `shutdown` is cancelled.
    pub(super) fn new(shutdown: CancellationToken) -> Self {
        Self {
            line: Turns::new(PERMITS.into(), IN_LINE),
            work: Turns::new(AT_ONCE, OF_ONE),
            shutdown,
        }
    }

    /// Waits until a JobSet of this namespace may be reconciled. `None` if too many of them wait,
    /// or at a shutdown.
    pub(super) async fn take(&self, namespace: &str) -> Option<Permit> {
        let in_line = self.line.try_take(namespace, 1)?;
        let turn = self.shutdown.run_until_cancelled(self.work.take(namespace, 1));
        Some(Permit {
            _at_work: turn.await?,
            _in_line: in_line,
        })
    }
}
