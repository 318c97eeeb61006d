//! What a replicatedJob waits for before its Jobs start.

use lockstep_api::ReplicatedJob;

/// What must hold of another replicatedJob.
pub(crate) struct Gate<'a> {
    /// The other replicatedJob, if it exists.
    pub(crate) on: Option<&'a ReplicatedJob>,
    /// What it must have reached.
    pub(crate) until: Milestone,
    /// True if the gate holds Jobs back even while they would be created suspended.
    pub(crate) holds_while_suspended: bool,
}

/// What a replicatedJob can have reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Milestone {
    /// Each of its Jobs is ready, has succeeded or has failed.
    Ready,
    /// Each of its Jobs has succeeded.
    Complete,
    /// Each of its Jobs has failed.
    Failed,
    /// Each of its Jobs has pods, or has succeeded or failed.
    Active,
}
