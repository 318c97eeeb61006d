//! The coordinator's output: the desired state for the nodes, the status to write, and the
//! announcements.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Blockage, Blocked, Cause, Durable, EscalateAfter, Generation, Identity, Incarnation, Report,
    RestartLevel, Scope, StepDelay, UnixNanos,
};

/// Result of one step.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Output {
    /// The desired state for every node with workers of this group. `None`: send nothing now.
    pub desired: Option<Desired>,
    /// The wanted `status.inPlaceRestart`. `None`: leave it as it is.
    pub status: Option<Durable>,
    /// What blocks a restart until an operator resolves it, for `status.conditions`.
    pub blocked: Blockage,
    /// What has just happened, for events, metrics and logs.
    pub announcements: Vec<Announcement>,
    /// Pods to delete, so that their workers start elsewhere.
    pub condemned: Vec<Condemned>,
    /// True if lost pods may be replaced now.
    pub replace: bool,
    /// When to step again even if nothing changes.
    pub wake_at: Option<UnixNanos>,
    /// The workers whose progress needs no step. `None`: each report needs one.
    pub step_delay: Option<StepDelay>,
}

/// A pod whose worker has failed too often.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condemned {
    /// The worker.
    pub identity: Identity,
    /// UID of the pod.
    pub pod_uid: String,
    /// Name of the pod.
    pub pod: String,
    /// Its node, empty if unknown.
    pub node: String,
}

/// Desired state of a group's workers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// The generation that all workers should have.
    pub generation: Generation,
    /// Counted restarts so far.
    pub counted_restarts: u32,
    /// True if workers parked at `generation` start.
    pub release: bool,
    /// Incarnations that may start for the first time, at `generation`. Those without an agent run
    /// already, and belong to that generation from now on.
    pub fresh: BTreeSet<Incarnation>,
    /// Incarnations without an agent and without a generation that began before the restart. They
    /// are restarted like the others.
    pub stale: BTreeSet<Incarnation>,
    /// Incarnations that had a worker restart since the last restart of the group, and the desired
    /// state of each.
    pub worker_restarts: BTreeMap<Incarnation, WorkerRestart>,
}

/// Desired state of a worker that had a worker restart.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct WorkerRestart {
    /// The generation that it should have, above that of the group.
    pub generation: Generation,
    /// True if it starts once it is parked at `generation`.
    pub release: bool,
}

/// Something to publish in events, metrics and logs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Announcement {
    /// A restart in place has begun.
    Restarting {
        /// The affected workers.
        scope: Scope,
        /// Desired generation.
        generation: Generation,
        /// Its cause.
        cause: Cause,
    },
    /// All affected workers run again.
    Restarted {
        /// The affected workers.
        scope: Scope,
        /// When each phase was reached.
        timeline: Timeline,
        /// Its cause.
        cause: Cause,
        /// The highest level that it has reached.
        level: RestartLevel,
    },
    /// The child Jobs are being recreated.
    Recreating {
        /// Desired generation.
        generation: Generation,
        /// Why a restart in place was not possible.
        cause: Cause,
    },
    /// maxRestarts is exhausted.
    Exhausted {
        /// The failure that would have needed another restart.
        cause: Cause,
    },
    /// The pod of a worker is deleted.
    Escalated {
        /// The pod.
        condemned: Condemned,
        /// How often the worker has failed. `None`: its restart took too long.
        after: Option<EscalateAfter>,
    },
    /// The pod of a worker is deleted because the worker failed soon after a restart in place.
    Climbed {
        /// The pod.
        condemned: Condemned,
    },
    /// The group waits for something that an operator must resolve.
    Blocked(Blocked),
}

/// When each phase of one restart was reached. Zero if it was not reached or is not known.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeline {
    /// The generation that it led to.
    pub generation: Generation,
    /// The worker failed (its node's clock).
    pub failed_at: UnixNanos,
    /// The control plane decided to restart.
    pub detected_at: UnixNanos,
    /// The new generation was passed to the streams of all nodes. The caller fills it in.
    pub pushed_at: UnixNanos,
    /// The new generation was confirmed durable.
    pub written_at: UnixNanos,
    /// The last worker process was gone (its node's clock).
    pub stopped_at: UnixNanos,
    /// The control plane knew that all were parked.
    pub parked_at: UnixNanos,
    /// The release was decided.
    pub released_at: UnixNanos,
    /// The last worker process was started (its node's clock).
    pub running_at: UnixNanos,
    /// How many workers were restarted.
    pub workers: usize,
    /// How many of them run in another pod than before.
    pub replaced: usize,
    /// How many of them began from a standby.
    pub from_standbys: usize,
    /// CPU time of the imports that a standby had done before its release, in milliseconds; the
    /// most of any.
    pub ahead_ms: u32,
}

impl Timeline {
    /// Notes how the workers of these reports have started.
    pub(super) fn note_starts<'a>(&mut self, reports: impl Iterator<Item = &'a Report>) {
        let starts = reports.filter_map(|report| report.standby.as_ref()?.starts);
        for starts in starts.filter(|starts| starts.standby > 0) {
            self.from_standbys += 1;
            self.ahead_ms = self.ahead_ms.max(starts.ahead_ms);
        }
    }
}
