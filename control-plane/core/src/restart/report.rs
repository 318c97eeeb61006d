//! What the node daemons report of workers.

pub use lockstep_protocol::{Exit, Heartbeat};

use super::{Generation, Identity, UnixNanos};

/// Phase of an incarnation as its daemon reports it.
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
    /// The worker exited by itself, not 0.
    Exited(Exit),
    /// The worker exited 0 before any stop signal.
    Done,
    /// The daemon, or the link to it, is away. Evidence of nothing.
    Unlinked,
    /// The container is gone, as observed by the daemon.
    Lost(Exit),
}

/// The newest report of one incarnation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which worker this is an incarnation of.
    pub identity: Identity,
    /// Node whose daemon reported it.
    pub node: String,
    /// Name of the pod, for people.
    pub pod_name: String,
    /// Its phase.
    pub phase: Phase,
    /// The count that it runs or parks at.
    pub generation: Generation,
    /// Highest counter that its agent has seen.
    pub counter: u32,
    /// When the phase was entered, or the heartbeat was missed, by the node's clock.
    pub since: UnixNanos,
    /// What its heartbeat says. It means something only while the worker runs.
    pub heartbeat: Heartbeat,
    /// Of a container that ended, was made without its agent and was never stopped for a restart:
    /// the generation at which its group was released while it ran.
    pub released_at: Option<Generation>,
}

impl Report {
    /// Becomes the newer report. False if they are the same.
    pub fn follow(&mut self, newer: &Self) -> bool {
        let Self {
            identity,
            node,
            pod_name,
            phase,
            generation,
            counter,
            since,
            heartbeat,
            released_at,
        } = newer;
        if (&self.identity, &self.node, &self.pod_name) != (identity, node, pod_name) {
            self.clone_from(newer);
            return true;
        }
        let news = (*phase, *generation, *counter, *since, *heartbeat, *released_at);
        let known = (
            self.phase,
            self.generation,
            self.counter,
            self.since,
            self.heartbeat,
            self.released_at,
        );
        (
            self.phase,
            self.generation,
            self.counter,
            self.since,
            self.heartbeat,
            self.released_at,
        ) = news;
        news != known
    }
}
