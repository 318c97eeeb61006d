//! Invariants of the status: it never goes back, counts each failure once and no more than allowed,
//! and takes few writes.
//!
//! A failure that Recreate would survive never fails a JobSet that restarts in place. In some
//! scenarios one worker fails in every pod in which it was started before, as if the kernel kept
//! its leftovers until the pod ends. One ordinary failure leads to that, and recreating all Jobs
//! would end it.

use std::collections::BTreeSet;

use lockstep_api::JobSet;
use lockstep_core::restart::{Durable, DurablePhase};

use super::latest;
use crate::scenario::{Leftovers, Profile};
use crate::world::World;
use crate::world::node::container::Identity;
use crate::world::replica::group::durable_of;

/// No generation of a history reaches this number, however often nodes report higher ones that are
/// plausible.
const FARTHEST: u64 = 1 << 33;

/// How many failures may be counted if one leader sees them all: the ordinary one, and the first
/// one of the worker with leftovers.
const COUNTED: u32 = 2;

impl World {
    /// The status was written.
    pub(crate) fn check_status(&mut self, before: Option<&JobSet>, after: &JobSet) {
        let (now, then) = (durable_of(after), before.map(durable_of).unwrap_or_default());
        self.note_generation(latest(&now));
        self.truth.of_all.insert(now.generation.0);
        if now.generation < then.generation
            || latest(&now) < latest(&then)
            || now.counted_restarts < then.counted_restarts
        {
            self.violate(format!("the status goes back from {then:?} to {now:?}"));
        }
        let is_lied_to = self.scenario.lies_of_own.is_some();
        // No restore of the store explains more, and numbers must not run out.
        if latest(&now) > FARTHEST {
            let latest = latest(&now);
            self.violate(format!(
                "a leader believes a node that reports generation {latest}"
            ));
        }
        // A lying node may have reported a count of restarts.
        if !is_lied_to
            && now.counted_restarts > then.counted_restarts
            && now.counted_restarts > self.truth.max_restarts
        {
            let max = self.truth.max_restarts;
            self.violate(format!(
                "{} restarts are counted, {max} are allowed",
                now.counted_restarts
            ));
        }
        self.check_leftovers(&now);
        // Failures at one generation count once, except those of workers that have worker restarts.
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
        if !is_lied_to && now.counted_restarts as usize > exact.len() + others {
            self.violate(format!(
                "{} restarts are counted, but workers have failed at only {} generations",
                now.counted_restarts,
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
        // A worker that fails again soon after each restart is an exception.
        if self.scenario.profile == Profile::Clean && now.phase == DurablePhase::Recreating && climbs == 0 {
            self.violate("Jobs are recreated although every worker could be restarted in place".to_owned());
        }
        if self.scenario.profile == Profile::Calm && (now.generation.0 > 0 || now.counted_restarts > 0) {
            self.violate(format!(
                "the group is at generation {} although nothing has failed",
                now.generation
            ));
        }
    }

    /// True if this worker is about to fail because of its leftovers in the pod.
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
            self.violate("the JobSet has failed, and would have survived Recreate".to_owned());
        }
        if leftovers == Leftovers::WorkerRestart && now.counted_restarts > COUNTED {
            let counted = now.counted_restarts;
            self.violate(format!(
                "{counted} restarts are counted because of the leftovers of one"
            ));
        }
    }
}
