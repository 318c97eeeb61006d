//! Checks standbys from time to time: the container's memory, imports that do not end, and programs
//! that do not park.

use std::time::Duration;

use super::family::Usage;
use super::memory::SHORT;
use super::{LOOK, Standbys};

impl Standbys {
    /// Ends the waiting standbys if the container's memory is short, an import does not end, or the
    /// program does not park in time.
    pub(crate) fn tend(&mut self, now: Duration) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        let ranks = self
            .ranks
            .as_ref()
            .is_some_and(|ranks| ranks.spared().next().is_some());
        self.look_at = (self.process.is_some() || ranks).then_some(now + LOOK);
        if let Some(process) = &mut self.process {
            process.look_at_import(now);
        }
        self.look_at_parking(now);
        if let Some(ranks) = &mut self.ranks {
            ranks.tend(&self.memory, now);
        }
        let Some(process) = self.waiting() else { return };
        let size = Usage::of(process.pid).memory_kib;
        if self.memory.is_short_beside(size) {
            process.kill();
            SHORT.clone_into(&mut self.reason);
            // A standby that still imported would have needed more.
            self.size_kib = self.size_kib.max(Some(size.saturating_mul(2)));
        }
    }

    fn look_at_parking(&mut self, now: Duration) {
        let (Some(process), Some(program)) = (&self.process, self.way.program()) else {
            return;
        };
        // Report it once, since the standby is being ended.
        if let Some(most) = program.is_overdue(process, now)
            && self.reason.is_empty()
        {
            process.kill();
            self.reason = format!("the standby has not parked within {} s", most.as_secs());
            self.has_not_parked();
        }
    }
}
