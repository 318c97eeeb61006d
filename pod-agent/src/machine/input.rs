//! What the agent takes in: orders, facts and the time.

use std::time::Duration;

pub use lockstep_protocol::TerminalCodes;

use super::action::{KillReport, Source};
use super::status::{BootNanos, Epoch, Exit, Generation, Heartbeat, Progress, Standbys, UnixNanos};

/// The time of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Since the agent started; monotonic.
    pub mono: Duration,
    /// By the wall clock.
    pub unix: UnixNanos,
    /// By the clock that gives processes their start times.
    pub boot: BootNanos,
}

/// The desired state of the worker.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Target {
    /// Of the leader that gave the order.
    pub epoch: Epoch,
    /// The generation that the worker should have.
    pub generation: Generation,
    /// Counted restarts so far.
    pub counted_restarts: u64,
    /// Start if parked at `generation`.
    pub release: bool,
    /// This incarnation is named in the release: it may start its worker for the first time. A
    /// former leader's late orders cannot name newer incarnations.
    pub start_fresh: bool,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Exit codes with which the agent itself exits.
    pub terminal_codes: Vec<TerminalCodes>,
    /// Longest time between two heartbeats of the worker; zero: none are required.
    pub heartbeat_timeout: Duration,
    /// How long a started worker may take until its first heartbeat; zero: no limit.
    pub ready_timeout: Duration,
}

/// A fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// An order of the daemon.
    Target(Target),
    /// The worker has been started.
    Started,
    /// The worker cannot be started.
    StartFailed {
        /// As a shell would exit.
        code: i32,
        /// Why.
        detail: String,
    },
    /// The worker itself has ended.
    WorkerExited(Exit),
    /// No process of the worker's tree remains. Sent while [`Machine::awaits_empty`].
    TreeEmpty,
    /// The outcome of [`Action::Kill`].
    Killed(KillReport),
    /// State of the running worker's heartbeat.
    Heartbeat(Heartbeat),
    /// All that the worker has said of its work in this attempt.
    Progress(Progress),
    /// The worker's standby is ready; `ahead`: CPU time of what it has imported.
    StandbyReady {
        /// CPU time of its imports.
        ahead: Duration,
    },
    /// The worker's standby has ended, before it was released.
    StandbyGone {
        /// True if another standby would fail like this one.
        hopeless: bool,
    },
    /// The released standby has ended without running anything of the worker.
    StandbyRefused(Exit),
    /// What waits for the next attempt has changed, for people.
    Standbys(Standbys),
    /// The worker has started a process of its own through the agent.
    RankStarted {
        /// From what.
        source: Source,
        /// CPU time of the imports that were done ahead.
        ahead: Duration,
    },
    /// A signal to the agent; `outside`: from the container runtime.
    Signal {
        /// Its number.
        signo: i32,
        /// From the container runtime.
        outside: bool,
    },
    /// [`Machine::deadline`] has passed.
    Tick,
}
