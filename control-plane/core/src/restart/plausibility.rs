//! Which generations and counters of nodes are plausible.
//!
//! Promises: a report of an honest node is always plausible, even after the store was restored from
//! an old backup; a believed report fits into the status, so that it can become durable.

use lockstep_mutants::mutant;

use super::{Durable, Generation, Report};

/// How far a report may be above what is durable: leaders are ahead by a few, and a restored status
/// is behind by as many restarts as there were since its backup. No group restarts this often.
const FARTHEST: u64 = 1 << 32;
/// Counted restarts that may be missing in the status beside one for each generation.
const UNCOUNTED: u64 = 1024;

/// Why a report cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impossible {
    /// Its generation is above all that can have been given.
    Generation,
    /// It counts more restarts than generations were given.
    Counter,
}

impl Durable {
    /// Why a report cannot be true, given that this is durable.
    #[must_use]
    pub fn contradicts(&self, report: &Report) -> Option<Impossible> {
        mutant!(BelieveImpossible => None);
        let known = self.generation.max(self.latest);
        if report.generation <= known {
            // Its counter is not followed.
            return None;
        }
        let ahead = report.generation.0.saturating_sub(known.0);
        if ahead > FARTHEST || report.generation > Generation::LAST {
            return Some(Impossible::Generation);
        }
        let counted = u64::from(self.counter).saturating_add(ahead);
        (u64::from(report.counter) > counted.saturating_add(UNCOUNTED)).then_some(Impossible::Counter)
    }
}

#[cfg(test)]
mod tests;
