//! Pods above the minimum of a gang. They may come late or never: who has not joined is not waited for, and who joins does so without a restart.
//!
//! An extra joins when it is released, and that it runs is written, so that a later leader tells one that was lost from one that never came. One
//! that is lost is a failure like any other; but the restart that follows does not wait for it, for it may not find room again.

use super::super::{Identity, Observed};
use super::{Coordinator, State};

impl Coordinator {
    /// Whether an extra takes part.
    pub(super) fn has_joined(&self, identity: &Identity) -> bool {
        self.seats.contains_key(identity)
            || self.joined.contains(&identity.place())
            || self.apart.concerns(identity)
    }

    /// During a restart: extras without a pod on a node are not waited for.
    pub(super) fn forget_lost_extras(&mut self, observed: &Observed) {
        if !matches!(self.state, State::Stopping { .. } | State::Parked { .. }) {
            return;
        }
        let extras = observed.workers.iter().filter(|(_, worker)| worker.extra);
        for (identity, _) in extras.filter(|(_, worker)| worker.pods.iter().all(|pod| pod.node.is_none())) {
            self.joined.remove(&identity.place());
            self.seats.remove(identity);
            self.newcomers.remove(identity);
            self.unseen.remove(identity);
        }
    }
}
