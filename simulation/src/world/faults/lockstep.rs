//! Parts of Lockstep fail, and what they need: processes, clocks, the network.

use crate::time::{SEC, Time};
use crate::world::World;
use crate::world::event::{Event, NodeIndex, ReplicaIndex};
use crate::world::network::Path;

impl World {
    pub(crate) fn leader(&self) -> Option<usize> {
        self.replicas.iter().position(|replica| replica.leader.is_some())
    }

    pub(super) fn clock_step(&mut self, node: NodeIndex, replica: ReplicaIndex) {
        let by = i64::try_from(self.rng.below(600 * SEC)).unwrap_or(0) - 300_000_000_000;
        self.nodes[node].clock_ahead += by;
        self.replica_clocks[replica] -= by;
    }

    pub(super) fn daemon_dies_for(&mut self, node: NodeIndex, down: Time) {
        self.daemon_crash(node);
        self.queue.push(self.now + down, Event::DaemonStart { node });
    }

    pub(super) fn leader_crashes(&mut self, down: Time) {
        if let Some(replica) = self.leader() {
            self.replica_crash(replica, down);
        }
    }

    /// The leader freezes, or this replica if none leads.
    pub(super) fn leader_freezes(&mut self, replica: ReplicaIndex, down: Time) {
        let replica = self.leader().unwrap_or(replica);
        self.replicas[replica].paused_until = self.now + down;
    }

    pub(super) fn cut_from_hub(&mut self, node: NodeIndex, down: Time) {
        let until = self.now + down;
        for replica in 0..self.replicas.len() {
            self.cut(Path::NodeToHub(node, replica), until);
        }
    }
}
