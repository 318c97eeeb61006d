//! A failure that Recreate would survive is never made terminal by being in place.
//!
//! One worker fails wherever it was started before: the kernel keeps what it left behind for as long as its pod lives. One failure of another kind leads to
//! that, and with all Jobs made anew for it all would be well again.

use lockstep_core::restart::{Durable, DurablePhase};

use crate::scenario::Leftovers;
use crate::world::World;

/// What may be counted where one leader sees it all: the one failure, and the first one of the worker that it restarts.
const COUNTED: u32 = 2;

impl World {
    /// Whether this worker is about to fail because of what it left behind in its pod.
    pub(crate) fn left_behind_in_pod(&mut self, id: &str) -> bool {
        let Some(container) = self.containers.get(id) else {
            return false;
        };
        let jobset = &self.scenario.jobset;
        let first = &jobset.spec.replicated_jobs[0].name;
        let is_it = self.scenario.leftovers.is_some() && container.identity == (jobset.job_name(first, 0), 0);
        is_it && !self.truth.used.insert(container.pod.clone())
    }

    pub(super) fn check_leftovers(&mut self, now: &Durable) {
        let Some(leftovers) = self.scenario.leftovers else {
            return;
        };
        if now.phase == DurablePhase::Failed {
            self.violate("the JobSet has failed in place, and would survive Recreate".to_owned());
        }
        if leftovers == Leftovers::WorkerRestart && now.counter > COUNTED {
            let counted = now.counter;
            self.violate(format!(
                "{counted} restarts are counted for what one has left behind"
            ));
        }
    }
}
