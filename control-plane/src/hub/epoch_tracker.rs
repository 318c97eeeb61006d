//! Epochs that nodes and statuses know.
//!
//! Promises: an epoch in a status is believed at once, since only leaders write it. An epoch that
//! nodes report is believed by majority: once nodes have had time to connect, more of them must
//! know a higher epoch than a lower one. A daemon that knows only this leader's epoch has no vote.
//! One lying node, or a few among many, cannot make a leader step down.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_core::restart::Epoch;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How far an epoch from before a restore may be above the current one: more writes than a store
/// ever sees.
const FARTHEST: u64 = 1 << 40;
/// How long after the beginning of a term nodes get a vote. By then all nodes that can connect have
/// connected.
const SETTLED: Duration = Duration::from_secs(15);

/// An epoch that a node claims to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Claim {
    /// Above the current epoch.
    #[error(
        "the node knows a leader with the higher epoch {0}: either the node lies, or the cluster's store was restored from a backup"
    )]
    Higher(Epoch),
    /// Above any possible epoch.
    #[error("the node knows the epoch {0}, which is impossible")]
    Impossible(Epoch),
}

impl Claim {
    /// Its name in metrics.
    pub(super) fn reason(self) -> &'static str {
        match self {
            Self::Higher(_) => "higher_epoch",
            Self::Impossible(_) => "impossible_epoch",
        }
    }
}

/// The highest epochs that nodes and statuses know. An epoch above this leader's own has one of two
/// causes. Another leader was elected; or the store was restored from a backup and hands out old
/// versions, and with them old epochs, which no node would obey.
#[derive(Debug)]
pub(super) struct EpochTracker {
    own: Epoch,
    began: Instant,
    known: Mutex<KnownEpochs>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct KnownEpochs {
    /// The highest epoch in a status, if it is above the leader's own.
    durable: Option<Epoch>,
    /// What each node knows. Nodes that know no leader are missing.
    nodes: HashMap<String, NodeEpochs>,
}

/// What a node has reported in this term.
#[derive(Debug, Default)]
struct NodeEpochs {
    highest: Epoch,
    /// Set once the node knew an earlier leader. A node that knows neither an earlier nor a higher
    /// one only repeats what this leader has told it.
    knew_a_lower: bool,
}

impl EpochTracker {
    pub(super) fn new(own: Epoch) -> Self {
        Self {
            own,
            began: Instant::now(),
            known: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// Notes an epoch from a status.
    pub(super) fn note_status(&self, epoch: Epoch) {
        if epoch <= self.own {
            return;
        }
        if !self.can_be(epoch) {
            tracing::warn!(%epoch, own = %self.own, "ignored an impossible epoch");
            return;
        }
        let mut known = self.lock();
        known.durable = known.durable.max(Some(epoch));
        drop(known);
        self.changed.notify_one();
    }

    /// Notes an epoch that a node reports.
    ///
    /// # Errors
    /// Why the epoch is suspicious, if the node reports it for the first time.
    pub(super) fn note_node(&self, node: &str, epoch: Epoch) -> Result<(), Claim> {
        if epoch == Epoch::default() {
            return Ok(());
        }
        if !self.can_be(epoch) {
            return Err(Claim::Impossible(epoch));
        }
        let mut known = self.lock();
        let is_known = known.nodes.contains_key(node);
        if !is_known {
            known.nodes.insert(node.to_owned(), NodeEpochs::default());
        }
        let Some(of_node) = known.nodes.get_mut(node) else {
            return Ok(());
        };
        of_node.knew_a_lower |= epoch < self.own;
        let is_new = epoch > of_node.highest;
        of_node.highest = of_node.highest.max(epoch);
        drop(known);
        if epoch <= self.own || !is_new {
            return Ok(());
        }
        self.changed.notify_one();
        Err(Claim::Higher(epoch))
    }

    /// Forgets a node that is gone for good.
    pub(super) fn forget(&self, node: &str) {
        if self.lock().nodes.remove(node).is_some() {
            self.changed.notify_one();
        }
    }

    /// The highest known epoch, believed or not, if it is above the leader's own.
    pub(super) fn highest(&self) -> Option<Epoch> {
        let known = self.lock();
        let nodes = known.nodes.values().map(|node| node.highest);
        nodes.chain(known.durable).max().filter(|epoch| *epoch > self.own)
    }

    /// Resolves with the highest epoch once one above this leader's own is believed. Cancel-safe.
    pub(super) async fn outbid(&self) -> Epoch {
        let settled = self.began + SETTLED;
        loop {
            let changed = self.changed.notified();
            if self.is_outbid(Instant::now() >= settled)
                && let Some(highest) = self.highest()
            {
                return highest;
            }
            if Instant::now() < settled {
                tokio::select! {
                    () = changed => {}
                    () = sleep_until(settled) => {}
                }
            } else {
                changed.await;
            }
        }
    }

    fn is_outbid(&self, settled: bool) -> bool {
        let known = self.lock();
        let above = known
            .nodes
            .values()
            .filter(|node| node.highest > self.own)
            .count();
        let below = known.nodes.values().filter(|node| node.highest <= self.own);
        let below = below.filter(|node| node.knew_a_lower).count();
        known.durable.is_some() || settled && above > below
    }

    /// True if a restore can explain the epoch. Others would use up the numbers.
    fn can_be(&self, epoch: Epoch) -> bool {
        epoch.0 <= self.own.0.saturating_add(FARTHEST)
    }

    fn lock(&self) -> MutexGuard<'_, KnownEpochs> {
        // Nothing that holds this lock can leave it half-changed.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: Epoch = Epoch(7);

    /// What the leader is outbid by, within an hour.
    async fn outbid(epoch_tracker: &EpochTracker) -> Option<Epoch> {
        let hour = Duration::from_secs(3600);
        tokio::time::timeout(hour, epoch_tracker.outbid()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_status_is_believed_at_once() {
        let epoch_tracker = EpochTracker::new(OWN);
        epoch_tracker.note_status(OWN);
        assert_eq!(outbid(&epoch_tracker).await, None);
        let epoch_tracker = EpochTracker::new(OWN);
        let began = Instant::now();
        epoch_tracker.note_status(Epoch(9));
        assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(9)));
        assert!(began.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn one_lying_node_makes_no_leader_step_down_and_the_next_epoch_is_above_its_own() {
        let epoch_tracker = EpochTracker::new(OWN);
        // It connects first, and is the only one for some time.
        assert_eq!(
            epoch_tracker.note_node("liar", Epoch(1000)),
            Err(Claim::Higher(Epoch(1000)))
        );
        assert_eq!(epoch_tracker.note_node("honest", Epoch(6)), Ok(()));
        assert_eq!(epoch_tracker.note_node("new", Epoch(0)), Ok(()));
        for epoch in 1001..1100 {
            assert!(epoch_tracker.note_node("liar", Epoch(epoch)).is_err());
        }
        assert_eq!(outbid(&epoch_tracker).await, None);
        assert_eq!(epoch_tracker.highest(), Some(Epoch(1099)));
        // A lower epoch afterwards changes nothing.
        assert_eq!(epoch_tracker.note_node("liar", Epoch(6)), Ok(()));
        assert_eq!(outbid(&epoch_tracker).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_majority_of_nodes_is_believed_once_all_could_connect() {
        let epoch_tracker = EpochTracker::new(OWN);
        for (node, epoch) in [("n1", 9), ("n2", 12), ("n3", 6)] {
            let _ = epoch_tracker.note_node(node, Epoch(epoch));
        }
        let began = Instant::now();
        assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(12)));
        assert_eq!(began.elapsed(), SETTLED);
        // Later, a majority is believed at once.
        let epoch_tracker = EpochTracker::new(OWN);
        let _ = epoch_tracker.note_node("n1", Epoch(6));
        let _ = epoch_tracker.note_node("n2", Epoch(9));
        assert_eq!(outbid(&epoch_tracker).await, None);
        epoch_tracker.forget("n1");
        assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(9)));
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_only_repeat_this_leaders_epoch_have_no_vote() {
        let epoch_tracker = EpochTracker::new(OWN);
        for node in ["n1", "n2", "n3"] {
            assert_eq!(epoch_tracker.note_node(node, OWN), Ok(()));
        }
        assert_eq!(outbid(&epoch_tracker).await, None);
        // Its agents are from before the restore, and obey no lower epoch.
        assert!(epoch_tracker.note_node("n4", Epoch(1000)).is_err());
        assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(1000)));
    }

    #[tokio::test(start_paused = true)]
    async fn impossible_epochs_are_ignored() {
        let epoch_tracker = EpochTracker::new(OWN);
        epoch_tracker.note_status(Epoch(u64::MAX));
        let beyond = Epoch(u64::MAX);
        assert_eq!(
            epoch_tracker.note_node("n1", beyond),
            Err(Claim::Impossible(beyond))
        );
        assert_eq!(outbid(&epoch_tracker).await, None);
        assert_eq!(epoch_tracker.highest(), None);
    }
}
