//! Epochs that others have heard of.
//!
//! Promises: what a status says of an epoch is believed at once, since only leaders write it; what
//! nodes say only where more of them know of a higher one than of one before this, some time after
//! the term began, when they have connected. A daemon that knows only what this leader has said has
//! no vote. One node that lies, or a few among many, make no leader step down.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_core::restart::Epoch;
use thiserror::Error;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// How far an epoch of before a restore may be above the present one: more writes than a store ever
/// sees.
const FARTHEST: u64 = 1 << 40;
/// How long after the beginning of a term nodes are believed: by then those that can have
/// connected.
const SETTLED: Duration = Duration::from_secs(15);

/// What a node says of a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(super) enum Claim {
    /// Above the present one.
    #[error(
        "the node speaks of a leader with the higher epoch {0}: it lies, or the cluster's store was restored from a backup"
    )]
    Higher(Epoch),
    /// Above all that can be.
    #[error("the node speaks of the epoch {0}, which cannot be")]
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

/// The highest epochs that nodes and statuses speak of. Above this leader's own, either another one
/// has been elected, or the store was restored from a backup and hands out versions, and with them
/// epochs, that were used before: no node would obey.
#[derive(Debug)]
pub(super) struct EpochTracker {
    own: Epoch,
    began: Instant,
    heard: Mutex<HeardEpochs>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct HeardEpochs {
    /// What statuses say, if it is above the leader's own.
    durable: Option<Epoch>,
    /// What each node has spoken of: those that know of no leader are not here.
    nodes: HashMap<String, NodeEpochs>,
}

/// What a node has spoken of in this term.
#[derive(Debug, Default)]
struct NodeEpochs {
    highest: Epoch,
    /// It knew a leader of before this one. Without that, and of nobody higher, it only repeats
    /// what this leader has told it.
    knew_a_lower: bool,
}

impl EpochTracker {
    pub(super) fn new(own: Epoch) -> Self {
        Self {
            own,
            began: Instant::now(),
            heard: Mutex::default(),
            changed: Notify::new(),
        }
    }

    /// A status tells of this epoch.
    pub(super) fn written(&self, epoch: Epoch) {
        if epoch <= self.own {
            return;
        }
        if !self.can_be(epoch) {
            tracing::warn!(%epoch, own = %self.own, "an epoch that cannot be is ignored");
            return;
        }
        let mut heard = self.lock();
        heard.durable = heard.durable.max(Some(epoch));
        drop(heard);
        self.changed.notify_one();
    }

    /// A node tells of this epoch. Gives why that is suspicious, if it is news.
    pub(super) fn said(&self, node: &str, epoch: Epoch) -> Result<(), Claim> {
        if epoch == Epoch::default() {
            return Ok(());
        }
        if !self.can_be(epoch) {
            return Err(Claim::Impossible(epoch));
        }
        let mut heard = self.lock();
        let is_known = heard.nodes.contains_key(node);
        if !is_known {
            heard.nodes.insert(node.to_owned(), NodeEpochs::default());
        }
        let Some(spoken) = heard.nodes.get_mut(node) else {
            return Ok(());
        };
        spoken.knew_a_lower |= epoch < self.own;
        let is_news = epoch > spoken.highest;
        spoken.highest = spoken.highest.max(epoch);
        drop(heard);
        if epoch <= self.own || !is_news {
            return Ok(());
        }
        self.changed.notify_one();
        Err(Claim::Higher(epoch))
    }

    /// A node is gone for good.
    pub(super) fn forget(&self, node: &str) {
        if self.lock().nodes.remove(node).is_some() {
            self.changed.notify_one();
        }
    }

    /// The highest epoch that anybody speaks of, believed or not, if it is above the leader's
    /// own.
    pub(super) fn highest(&self) -> Option<Epoch> {
        let heard = self.lock();
        let nodes = heard.nodes.values().map(|spoken| spoken.highest);
        nodes.chain(heard.durable).max().filter(|epoch| *epoch > self.own)
    }

    /// Resolves once there is an epoch above this leader's own, with the highest. Cancel-safe.
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
        let heard = self.lock();
        let above = heard
            .nodes
            .values()
            .filter(|spoken| spoken.highest > self.own)
            .count();
        let below = heard.nodes.values().filter(|spoken| spoken.highest <= self.own);
        let below = below.filter(|spoken| spoken.knew_a_lower).count();
        heard.durable.is_some() || settled && above > below
    }

    /// What no restore can explain is not believed: it would use up the numbers.
    fn can_be(&self, epoch: Epoch) -> bool {
        epoch.0 <= self.own.0.saturating_add(FARTHEST)
    }

    fn lock(&self) -> MutexGuard<'_, HeardEpochs> {
        // Nothing that holds this lock can leave it half-changed.
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
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
        epoch_tracker.written(OWN);
        assert_eq!(outbid(&epoch_tracker).await, None);
        let epoch_tracker = EpochTracker::new(OWN);
        let began = Instant::now();
        epoch_tracker.written(Epoch(9));
        assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(9)));
        assert!(began.elapsed().is_zero());
    }

    #[tokio::test(start_paused = true)]
    async fn one_node_that_lies_makes_no_leader_step_down_and_is_outlived_by_the_next_one() {
        let epoch_tracker = EpochTracker::new(OWN);
        // It is the first to connect, and the only one for some time.
        assert_eq!(
            epoch_tracker.said("liar", Epoch(1000)),
            Err(Claim::Higher(Epoch(1000)))
        );
        assert_eq!(epoch_tracker.said("honest", Epoch(6)), Ok(()));
        assert_eq!(epoch_tracker.said("new", Epoch(0)), Ok(()));
        for epoch in 1001..1100 {
            assert!(epoch_tracker.said("liar", Epoch(epoch)).is_err());
        }
        assert_eq!(outbid(&epoch_tracker).await, None);
        assert_eq!(epoch_tracker.highest(), Some(Epoch(1099)));
        // Whatever it says of itself later on.
        assert_eq!(epoch_tracker.said("liar", Epoch(6)), Ok(()));
        assert_eq!(outbid(&epoch_tracker).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn most_nodes_are_believed_once_all_could_connect() {
        let epoch_tracker = EpochTracker::new(OWN);
        for (node, epoch) in [("n1", 9), ("n2", 12), ("n3", 6)] {
            let _ = epoch_tracker.said(node, Epoch(epoch));
        }
        let began = Instant::now();
        assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(12)));
        assert_eq!(began.elapsed(), SETTLED);
        // Later at once: as soon as most of them say so.
        let epoch_tracker = EpochTracker::new(OWN);
        let _ = epoch_tracker.said("n1", Epoch(6));
        let _ = epoch_tracker.said("n2", Epoch(9));
        assert_eq!(outbid(&epoch_tracker).await, None);
        epoch_tracker.forget("n1");
        assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(9)));
    }

    #[tokio::test(start_paused = true)]
    async fn nodes_that_only_repeat_what_this_leader_says_outvote_nobody() {
        let epoch_tracker = EpochTracker::new(OWN);
        for node in ["n1", "n2", "n3"] {
            assert_eq!(epoch_tracker.said(node, OWN), Ok(()));
        }
        assert_eq!(outbid(&epoch_tracker).await, None);
        // Its agents are those of before the restore, and obey nobody lower.
        assert!(epoch_tracker.said("n4", Epoch(1000)).is_err());
        assert_eq!(outbid(&epoch_tracker).await, Some(Epoch(1000)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_cannot_be_is_ignored() {
        let epoch_tracker = EpochTracker::new(OWN);
        epoch_tracker.written(Epoch(u64::MAX));
        let beyond = Epoch(u64::MAX);
        assert_eq!(epoch_tracker.said("n1", beyond), Err(Claim::Impossible(beyond)));
        assert_eq!(outbid(&epoch_tracker).await, None);
        assert_eq!(epoch_tracker.highest(), None);
    }
}
