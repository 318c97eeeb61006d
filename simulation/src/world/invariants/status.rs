//! What must hold of the status: it never goes back, counts each failure once and no more than
//! allowed, and costs few writes.
//!
//! A failure that Recreate would survive is never made terminal by being in place: in some
//! scenarios one worker fails wherever it was started before, as if the kernel kept what it left
//! behind for as long as its pod lives. One failure of another kind leads to that, and with all
//! Jobs recreated all would be well again.

use std::collections::BTreeSet;

use lockstep_api::JobSet;
use lockstep_core::restart::{Durable, DurablePhase};

use super::latest;
use crate::scenario::{Leftovers, Profile};
use crate::world::World;
use crate::world::node::container::Identity;
use crate::world::replica::group::durable_of;

/// More generations than there can be, however often nodes lie within a history that something may
/// have been given.
const FARTHEST: u64 = 1 << 33;

/// What may be counted if one leader sees it all: the one failure, and the first one of the worker
/// that it restarts.
const COUNTED: u32 = 2;

impl World {
    /// Somebody has written the status.
    pub(crate) fn check_status(&mut self, before: Option<&JobSet>, after: &JobSet, by_group: bool) {
        let (now, then) = (durable_of(after), before.map(durable_of).unwrap_or_default());
        self.truth.group_writes += u32::from(by_group);
        self.note_generation(latest(&now));
        self.truth.of_all.insert(now.generation.0);
        if now.generation < then.generation || latest(&now) < latest(&then) || now.counter < then.counter {
            self.violate(format!("the status goes back from {then:?} to {now:?}"));
        }
        let is_lied_to = self.scenario.lies_of_own.is_some();
        // No restore of a store explains more, and numbers have to last.
        if latest(&now) > FARTHEST {
            let latest = latest(&now);
            self.violate(format!("a node is believed that there was a generation {latest}"));
        }
        // What a node may have counted is.
        if !is_lied_to && now.counter > then.counter && now.counter > self.truth.max_restarts {
            let max = self.truth.max_restarts;
            self.violate(format!("{} restarts are counted, {max} are allowed", now.counter));
        }
        self.check_leftovers(&now);
        // Failures of one generation are one, except those of workers that have worker restarts.
        let exact: BTreeSet<(u64, Option<&Identity>)> = self
            .truth
            .causes
            .iter()
            .filter(|cause| cause.counts && cause.lo == cause.hi)
            .map(|cause| (cause.lo, cause.only.as_ref()))
            .collect();
        let others = self
            .truth
            .causes
            .iter()
            .filter(|cause| cause.counts && cause.lo != cause.hi)
            .count();
        if !is_lied_to && now.counter as usize > exact.len() + others {
            self.violate(format!(
                "{} restarts are counted, but workers have failed in {} generations only",
                now.counter,
                exact.len() + others
            ));
        }
        let (restarts, climbs) = (self.truth.restarts, self.truth.climbs);
        let of_restarts = 2 * restarts;
        let of_climbs = if climbs > 0 {
            2 * self.truth.recreations + climbs
        } else {
            0
        };
        if self.scenario.profile == Profile::Clean
            && self.truth.group_writes > self.truth.stages + of_restarts + of_climbs
        {
            let (writes, stages) = (self.truth.group_writes, self.truth.stages);
            self.violate(format!(
                "{writes} writes for {restarts} restarts of {stages} replicatedJobs"
            ));
        }
        // But for a worker that fails again soon after each restart.
        if self.scenario.profile == Profile::Clean && now.phase == DurablePhase::Recreating && climbs == 0 {
            self.violate("Jobs are made anew although every worker could be restarted in place".to_owned());
        }
        if self.scenario.profile == Profile::Calm && (now.generation.0 > 0 || now.counter > 0) {
            self.violate(format!(
                "the group is at generation {} although nothing has failed",
                now.generation
            ));
        }
    }

    /// True if this worker is about to fail because of what it left behind in its pod.
    pub(crate) fn left_behind_in_pod(&mut self, id: &str) -> bool {
        let Some(container) = self.containers.get(id) else {
            return false;
        };
        let jobset = &self.scenario.jobset;
        let first = &jobset.spec.replicated_jobs[0].name;
        let is_it = self.scenario.leftovers.is_some() && container.identity == (jobset.job_name(first, 0), 0);
        is_it && !self.truth.used.insert(container.pod.clone())
    }

    fn check_leftovers(&mut self, now: &Durable) {
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
