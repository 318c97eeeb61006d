//! Nobody leads for long by what is no more: a leader that has led since before the store went back ends.

use crate::event::ReplicaIndex;
use crate::time::{SEC, Time};
use crate::world::World;

/// How long it takes to find out, once the API server can be reached: a look at the Lease, and the time until it is lost anyway.
const FOUND_OUT: Time = 20 * SEC;

impl World {
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
