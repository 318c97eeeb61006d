//! A deterministic simulation of the restart protocol.
//!
//! The code that decides is real: the coordinator with its view of Jobs and pods, the reconciler's
//! plan, the hub's registry and sessions, the node daemon's table of workers, the pod agent's state
//! machine, and the conversions between them. Everything around it is a model on virtual time,
//! driven by one seed: API server, Job controller, kubelet, containerd, network, lease, processes,
//! clocks. After each event the simulation checks the invariants of `docs/restart-protocol.md`.
//! `cargo run -p lockstep-simulation -- replay <seed>` prints the history of a seed line by line,
//! with `--workers <number>` that of a large group. See `docs/simulation.md`.

mod rng;
mod scenario;
mod soak;
mod time;
mod world;

pub use soak::{Failure, Report, soak};

use world::{Trace, World};

/// The outcome of a run.
#[derive(Debug)]
pub struct Outcome {
    /// The violation of an invariant, if there was one.
    pub violation: Option<String>,
    /// Number of events.
    pub events: u64,
    /// Number of restarts that began.
    pub restarts: u32,
    /// How many of them were worker restarts.
    pub worker_restarts: u32,
    /// How many of the worker restarts were requested.
    pub requested: u32,
    /// Number of containers that were stopped for restarts.
    pub stops: u32,
    /// How many of these containers lacked the agent that they should have had.
    pub without_agent: u32,
    /// Number of starts of workers that went on from a standby.
    pub from_standby: u32,
    /// Number of ranks that went on from a standby.
    pub ranks_from_standby: u32,
    /// The history, line by line. Empty unless the run was a replay.
    pub trace: Vec<String>,
}

/// Runs one seed.
#[must_use]
pub fn run(seed: u64) -> Outcome {
    World::new(seed, Trace::default()).run()
}

/// Runs one seed with a group of this many workers.
#[must_use]
pub fn run_large(seed: u64, workers: u32) -> Outcome {
    World::large(seed, workers, Trace::default()).run()
}

/// Runs one seed with a group of this many workers and keeps a line for everything that happens.
#[must_use]
pub fn replay_large(seed: u64, workers: u32) -> Outcome {
    World::large(seed, workers, Trace::recording()).run()
}

/// Runs one seed and keeps a line for everything that happens.
#[must_use]
pub fn replay(seed: u64) -> Outcome {
    World::new(seed, Trace::recording()).run()
}
