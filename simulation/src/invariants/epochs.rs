//! What must hold of epochs: a daemon speaks of none that no leader has had, names none of before the one under which its node was welcomed, and
//! obeys nobody of before one that a daemon of its node has obeyed.

use lockstep_proto::node::v1 as pb;

use crate::event::NodeIndex;
use crate::world::World;

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

    /// A daemon introduces itself, and this is the lowest epoch that it names. A leader of before learns from it that there is another.
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
}
