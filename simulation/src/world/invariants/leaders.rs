//! Invariants of leaders and their epochs.
//!
//! A daemon reports no epoch that no leader has had, and none lower than the one under which its
//! node was welcomed. It obeys no leader earlier than one that a daemon of its node has obeyed. A
//! leader from before a restore of the store ends.

use lockstep_proto::node::v1 as pb;

use crate::time::{SEC, Time};
use crate::world::World;
use crate::world::event::{NodeIndex, ReplicaIndex};

/// How long a leader takes to find out about a restore once it reaches the API server: until it
/// reads the Lease, or loses it.
const FOUND_OUT: Time = 20 * SEC;

impl World {
    /// The highest epoch of a leader.
    pub(crate) fn truth_epoch(&self) -> u64 {
        self.truth.epoch
    }

    /// A replica leads under this epoch.
    pub(crate) fn note_epoch(&mut self, epoch: u64) {
        self.truth.epoch = self.truth.epoch.max(epoch);
    }

    /// A daemon reports this about its workers, whatever their agents have reported.
    pub(crate) fn check_epochs(&mut self, node: NodeIndex, workers: &[pb::WorkerState]) {
        let highest = self.truth.epoch;
        if let Some(state) = workers.iter().find(|state| state.epoch > highest) {
            let reported = state.epoch;
            self.violate(format!(
                "node-{node} reports epoch {reported}, but no leader has had more than {highest}"
            ));
        }
    }

    /// A daemon connects, and this is the lowest epoch in its snapshot. An earlier leader learns
    /// from it that there is a later one.
    pub(crate) fn check_remembered(&mut self, node: NodeIndex, lowest: Option<u64>) {
        let welcomed = self.nodes[node].welcomed;
        if let Some(reported) = lowest.filter(|reported| *reported < welcomed) {
            self.violate(format!(
                "node-{node} connects with epoch {reported}, but was welcomed under {welcomed}"
            ));
        }
    }

    /// A daemon obeys orders of leaders with these epochs.
    pub(crate) fn check_obeyed(&mut self, node: NodeIndex, orders: &[u64]) {
        for epoch in orders {
            let before = self.nodes[node].obeyed;
            if *epoch < before {
                return self.violate(format!(
                    "node-{node} obeys the leader of epoch {epoch} after that of {before}"
                ));
            }
            self.nodes[node].obeyed = *epoch;
        }
    }

    pub(super) fn check_restored(&mut self, well: Time) {
        let Some(restored) = self.restored_at else {
            return;
        };
        let late = self.now > restored.max(well) + FOUND_OUT;
        let led_before = |replica: &ReplicaIndex| {
            let leader = self.replicas[*replica].leader.as_ref();
            leader.is_some_and(|leader| leader.since < restored)
        };
        let leads_on = (0..self.replicas.len()).find(led_before);
        if let Some(replica) = leads_on.filter(|_| late) {
            self.violate(format!(
                "replica {replica} still leads by what it knew before the restore"
            ));
        }
    }
}
