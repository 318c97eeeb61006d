//! The role of this replica towards node daemons: the leader, or one that knows the leader's
//! address.
//!
//! Promises: streams are accepted only during a term, and all of them have ended when
//! [`Role::lead`] returns.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::health::Daemon;
use super::registry::Registry;
use crate::leader::LeaderAddress;

/// How long a daemon waits here for a leader, from its request on. It is shorter than the daemon's
/// own time-out.
pub(super) const HOLD: Duration = Duration::from_secs(4);

/// The role of this replica.
pub struct Role {
    term: watch::Sender<Option<Term>>,
    leader: LeaderAddress,
}

/// The time in which this replica leads.
#[derive(Clone)]
pub(super) struct Term {
    pub(super) registry: Arc<Registry>,
    /// The streams.
    pub(super) tasks: TaskTracker,
    /// Ends them.
    pub(super) end: CancellationToken,
}

impl Role {
    /// The role of a replica that does not lead yet.
    #[must_use]
    pub fn new(leader: LeaderAddress) -> Arc<Self> {
        Arc::new(Self {
            term: watch::Sender::new(None),
            leader,
        })
    }

    /// Accepts streams until `end`, then waits until the open ones have ended.
    pub async fn lead(&self, registry: Arc<Registry>, end: CancellationToken) {
        let tasks = TaskTracker::new();
        let term = Term {
            registry,
            tasks: tasks.clone(),
            end: end.clone(),
        };
        self.term.send_replace(Some(term));
        end.cancelled().await;
        self.term.send_replace(None);
        tasks.close();
        tasks.wait().await;
    }

    /// Waits until this replica leads or another one surely does, at most until `latest`. For some
    /// seconds after a leader has died, its Lease still names it. A daemon that is sent there comes
    /// back more and more slowly, and is late when there is a leader again.
    pub(super) async fn settled(&self, latest: Instant) {
        let mut term = self.term.subscribe();
        let settled = async {
            tokio::select! {
                // The sender is `self`.
                _ = term.wait_for(Option::is_some) => {}
                () = self.leader.renewed() => {}
            }
        };
        let _ = tokio::time::timeout_at(latest, settled).await;
    }

    /// [`Registry::daemons`] of the current term; `None` if this replica does not lead.
    #[must_use]
    pub fn daemons(&self, after: &str, most: usize) -> Option<(Vec<Daemon>, Option<String>)> {
        self.within(|term| term.registry.daemons(after, most)).ok()
    }

    /// Runs `act` with the current term held open.
    ///
    /// # Errors
    /// Host and port of the leader, if this replica does not lead; empty if they are not known.
    pub(super) fn within<T>(&self, act: impl FnOnce(&Term) -> T) -> Result<T, String> {
        match &*self.term.borrow() {
            Some(term) => Ok(act(term)),
            None => Err(self
                .leader
                .get()
                .map(|address| address.to_string())
                .unwrap_or_default()),
        }
    }
}
