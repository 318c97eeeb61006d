//! A deterministic simulation of the restart protocol.
//!
//! What decides is real: the coordinator with its view of Jobs and pods, the reconciler's plan, the
//! hub's registry and sessions, the node daemon's table of workers, the pod agent's state machine,
//! and the conversions between them. What surrounds them is modelled on virtual time from one seed:
//! API server, Job controller, kubelet, containerd, network, lease, processes, clocks. After each
//! event the invariants of `docs/restart-protocol.md` are checked; a seed that violates one is
//! replayed, line by line, by `cargo run -p lockstep-simulation -- replay <seed>`, and one with a
//! large group by the same with `--workers <number>`. See `docs/simulation.md`.

mod rng;
mod scenario;
mod soak;
mod time;
mod world;

pub use soak::{Failure, Report, soak};

use world::{Trace, World};

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What must not have happened, if anything.
    pub violation: Option<String>,
    /// Events that happened.
    pub events: u64,
    /// Restarts that began.
    pub restarts: u32,
    /// Those of them that were worker restarts.
    pub worker_restarts: u32,
    /// Those of these that were asked for.
    pub requested: u32,
    /// Containers that were stopped for them.
    pub stops: u32,
    /// Those of them that had no agent, and should have had one.
    pub without_agent: u32,
    /// What happened, line by line, if the trace was kept.
    pub trace: Vec<String>,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    World::new(seed, Trace::default()).run()
}

/// Runs one seed with a group of so many workers.
#[must_use]
pub fn run_large(seed: u64, workers: u32) -> Outcome {
    World::large(seed, workers, Trace::default()).run()
}

/// Runs one seed with a group of so many workers and keeps a line for everything that happens.
#[must_use]
pub fn replay_large(seed: u64, workers: u32) -> Outcome {
    World::large(seed, workers, Trace::kept()).run()
}

/// Runs one seed and keeps a line for everything that happens.
#[must_use]
pub fn replay(seed: u64) -> Outcome {
    World::new(seed, Trace::kept()).run()
}
