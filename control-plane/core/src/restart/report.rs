//! Reports of the node daemons about workers.

use std::sync::Arc;

pub use lockstep_protocol::{Exit, Heartbeat};

use super::{Generation, Identity, Progress, StandbyReport, UnixNanos};

/// Phase of an incarnation, as its daemon reports it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// The agent has registered and has never started its worker. Without an agent: the worker
    /// runs, and belongs to no generation yet.
    Fresh,
    /// The worker process is being started.
    Starting,
    /// The worker process runs.
    Running,
    /// Signalled for a restart; processes remain.
    Stopping,
    /// No process remains; waits for a release of the report's generation.
    Parked,
    /// The worker exited by itself with a code other than 0.
    Exited(Exit),
    /// The worker exited 0 before any stop signal.
    Done,
    /// The daemon, or the link to it, is away. This is evidence of nothing.
    Unlinked,
    /// The container is gone, as observed by the daemon.
    Lost(Exit),
}

/// The newest report of one incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The worker of this incarnation.
    pub identity: Identity,
    /// Node whose daemon reported it.
    pub node: String,
    /// Name of the pod, for messages.
    pub pod_name: String,
    /// Its phase.
    pub phase: Phase,
    /// The generation that it runs or parks at.
    pub generation: Generation,
    /// Highest count of restarts that its agent has seen.
    pub counted_restarts: u32,
    /// When the phase was entered, or the heartbeat was missed, by the node's clock.
    pub since: UnixNanos,
    /// The state of its heartbeat, meaningful only while the worker runs.
    pub heartbeat: Heartbeat,
    /// For an ended container that lacked its agent and was never stopped for a restart: the
    /// generation at which its group was released while it ran.
    pub released_generation: Option<Generation>,
    /// How its processes were started, and which are started ahead. Nothing is decided by it.
    pub standby: Option<Arc<StandbyReport>>,
    /// What the worker says of its work in this attempt. Nothing is decided by it.
    pub progress: Option<Arc<Progress>>,
}

/// How a report differs from the one before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// Not at all.
    None,
    /// Only in what is shown, which nothing is decided by.
    Shown,
    /// In what decisions depend on.
    Decisive,
}

impl Report {
    /// Becomes the newer report. Returns how they differ.
    pub fn follow(&mut self, newer: &Self) -> Difference {
        let Self {
            identity,
            node,
            pod_name,
            phase,
            generation,
            counted_restarts,
            since,
            heartbeat,
            released_generation,
            standby,
            progress,
        } = newer;
        if (&self.identity, &self.node, &self.pod_name) != (identity, node, pod_name) {
            self.clone_from(newer);
            return Difference::Decisive;
        }
        let is_shown = self.standby != *standby || self.progress != *progress;
        if is_shown {
            self.standby.clone_from(standby);
            self.progress.clone_from(progress);
        }
        let next = (
            *phase,
            *generation,
            *counted_restarts,
            *since,
            *heartbeat,
            *released_generation,
        );
        let known = (
            self.phase,
            self.generation,
            self.counted_restarts,
            self.since,
            self.heartbeat,
            self.released_generation,
        );
        (
            self.phase,
            self.generation,
            self.counted_restarts,
            self.since,
            self.heartbeat,
            self.released_generation,
        ) = next;
        match is_shown {
            _ if next != known => Difference::Decisive,
            true => Difference::Shown,
            false => Difference::None,
        }
    }
}

#[cfg(test)]
mod tests;
