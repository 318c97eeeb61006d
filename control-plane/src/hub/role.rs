//! What this replica is to node daemons: the leader, or one that knows where the leader is.
//!
//! Promises: streams are accepted only between the beginning and the end of a term, and all of them
//! have ended when [`Role::lead`] returns.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::health::Daemon;
use super::registry::Registry;
use crate::leader::LeaderAddress;

/// How long a daemon is kept waiting for a leader, from its first word on: shorter than it waits
/// for an answer.
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
    /// One that does not lead yet.
    #[must_use]
    pub fn new(leader: LeaderAddress) -> Arc<Self> {
        Arc::new(Self {
            term: watch::Sender::new(None),
            leader,
        })
    }

    /// Accepts streams until `end`, and waits for those that there are then.
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

    /// Waits, until then at most, until this replica leads or another one is sure to. In the
    /// seconds after a leader has died its Lease still names it: a daemon that was sent there would
    /// come back, ever more slowly, and be late when there is a leader again.
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

    /// [`Registry::daemons`] of the present term; `None`: this replica does not lead.
    #[must_use]
    pub fn daemons(&self, after: &str, most: usize) -> Option<(Vec<Daemon>, Option<String>)> {
        self.within(|term| term.registry.daemons(after, most)).ok()
    }

    /// Does something in the present term, which does not end meanwhile; or says where the leader
    /// is, if that is known: host and port.
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
