//! What is durable of a group: `status.inPlaceRestart`.

use std::collections::{BTreeMap, BTreeSet};

use super::{Cause, Epoch, Generation, Identity, RestartLevel};

/// `status.inPlaceRestart`, as far as decisions depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Durable {
    /// Epoch under which it was written.
    pub epoch: Epoch,
    /// Desired generation.
    pub generation: Generation,
    /// The highest generation given, to the group or to one worker; 0: none above `generation`.
    pub latest: Generation,
    /// Workers that restart by themselves, and the generation that each is to run.
    pub worker_restarts: BTreeMap<Identity, Generation>,
    /// The last generation that all workers have run.
    pub released: Generation,
    /// Counted restarts so far.
    pub counter: u32,
    /// Stages whose workers have all run since they were (re)created.
    pub started: BTreeSet<String>,
    /// The optional workers that have run since they were (re)created, as [`Identity::place`] names
    /// them. Others are not waited for.
    pub joined: BTreeSet<String>,
    /// Phase at the time of the write.
    pub phase: DurablePhase,
    /// Cause of the last restart.
    pub cause: Option<Cause>,
    /// Token of the latest manual request that has been acted upon.
    pub handled_request: Option<String>,
    /// The latest request to restart some workers that has been acted upon, as its annotation has
    /// it.
    pub handled_worker_restart: Option<String>,
    /// The highest level that the latest restart has taken, so far.
    pub level: Option<RestartLevel>,
}

/// The states of the coordinator, as they stand in the status.
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
