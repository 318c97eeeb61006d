//! The durable state of a group (`status.inPlaceRestart`), and which reports are plausible given
//! that.
//!
//! Promises: a report of an honest node is always plausible, even after the store was restored from
//! an old backup; a believed report fits into the status, so that it can become durable.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_mutants::mutant;

use super::{Cause, Epoch, Generation, Identity, Report, RestartLevel};

/// How far a report may be above the durable generation. Leaders are ahead by a few, and a restored
/// status lacks all restarts since its backup. No group restarts this often.
const FARTHEST: u64 = 1 << 32;
/// How many counted restarts may be missing in the status, in addition to one for each generation.
const UNCOUNTED: u64 = 1024;

/// `status.inPlaceRestart`, as far as decisions depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durable {
    /// Epoch under which it was written.
    pub epoch: Epoch,
    /// Desired generation.
    pub generation: Generation,
    /// The highest generation assigned to the group or to one worker; 0: none above `generation`.
    pub latest: Generation,
    /// Workers that restart by themselves, and the wanted generation of each.
    pub worker_restarts: BTreeMap<Identity, Generation>,
    /// The last generation that all workers have run.
    pub released: Generation,
    /// Counted restarts so far.
    pub counted_restarts: u32,
    /// Stages whose workers have all run since they were (re)created.
    pub started: BTreeSet<String>,
    /// The optional workers that have run since they were (re)created, as [`Identity::place`] names
    /// them. Others are not waited for.
    pub joined: BTreeSet<String>,
    /// Phase at the time of the write.
    pub phase: DurablePhase,
    /// Cause of the last restart.
    pub cause: Option<Cause>,
    /// Token of the latest handled manual request.
    pub handled_request: Option<String>,
    /// The latest handled request to restart some workers, as in its annotation.
    pub handled_worker_restart: Option<String>,
    /// The highest level that the latest restart has taken, so far.
    pub level: Option<RestartLevel>,
}

/// The states of the coordinator, as in the status.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DurablePhase {
    /// All released workers run the same generation.
    #[default]
    InSync,
    /// A restart in place is under way: workers stop, park at the desired generation and are
    /// released.
    Stopping,
    /// The child Jobs are being recreated.
    Recreating,
    /// maxRestarts is exhausted.
    Failed,
}

/// Why a report cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Impossible {
    /// Its generation is above all that can have been assigned.
    Generation,
    /// It counts more restarts than there were generations.
    CountedRestarts,
}

impl Durable {
    /// True if both say the same. Who has written them, and for which cause, does not count.
    pub(super) fn says_the_same(&self, other: &Self) -> bool {
        let Self {
            epoch: _,
            generation,
            latest,
            worker_restarts,
            released,
            counted_restarts,
            started,
            joined,
            phase,
            cause: _,
            handled_request,
            handled_worker_restart,
            level,
        } = self;
        *phase == other.phase
            && *generation == other.generation
            && *latest == other.latest
            && *worker_restarts == other.worker_restarts
            && *released == other.released
            && *counted_restarts == other.counted_restarts
            && *started == other.started
            && *joined == other.joined
            && *handled_request == other.handled_request
            && *handled_worker_restart == other.handled_worker_restart
            && *level == other.level
    }

    /// Why a report cannot be true, given this durable state.
    #[must_use]
    pub fn contradicts(&self, report: &Report) -> Option<Impossible> {
        mutant!(BelieveImpossible => None);
        let known = self.generation.max(self.latest);
        if report.generation <= known {
            // Its count of restarts is not followed.
            return None;
        }
        let ahead = report.generation.0.saturating_sub(known.0);
        if ahead > FARTHEST || report.generation > Generation::LAST {
            return Some(Impossible::Generation);
        }
        let counted = u64::from(self.counted_restarts).saturating_add(ahead);
        (u64::from(report.counted_restarts) > counted.saturating_add(UNCOUNTED))
            .then_some(Impossible::CountedRestarts)
    }
}

#[cfg(test)]
mod tests;
