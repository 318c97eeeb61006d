//! What must hold of leaders and their epochs.
//!
//! A daemon names no epoch that no leader has had, and none lower than the one under which its node
//! was welcomed. It obeys no leader earlier than one that a daemon of its node has obeyed. A leader
//! that has led since before the store went back ends.

use lockstep_proto::node::v1 as pb;

use crate::time::{SEC, Time};
use crate::world::World;
use crate::world::event::{NodeIndex, ReplicaIndex};

/// How long it takes to find out, once the API server can be reached: a look at the Lease, and the
/// time until it is lost anyway.
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

    /// A daemon says this of its workers, whatever their agents have said.
    pub(crate) fn check_epochs(&mut self, node: NodeIndex, workers: &[pb::WorkerState]) {
        let highest = self.truth.epoch;
        if let Some(state) = workers.iter().find(|state| state.epoch > highest) {
            let said = state.epoch;
            self.violate(format!(
                "node-{node} speaks of the epoch {said}, and no leader has had more than {highest}"
            ));
        }
    }

    /// A daemon introduces itself, and this is the lowest epoch that it names. An earlier leader
    /// learns from it that there is another.
    pub(crate) fn check_remembered(&mut self, node: NodeIndex, lowest: Option<u64>) {
        let welcomed = self.nodes[node].welcomed;
        if let Some(said) = lowest.filter(|said| *said < welcomed) {
            self.violate(format!(
                "node-{node} introduces itself with the epoch {said}, and was welcomed under {welcomed}"
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
                "replica {replica} leads on, by what it knew before the store went back"
            ));
        }
    }
}
