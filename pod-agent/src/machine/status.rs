//! The state of the worker, as the agent reports it to the daemon.

use std::time::Duration;

pub use lockstep_protocol::progress::Progress;
pub use lockstep_protocol::standby::Standbys;
pub use lockstep_protocol::{BootNanos, Epoch, Generation, Heartbeat, UnixNanos};

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself, with this code.
    Code(i32),
    /// By this signal.
    Signal(i32),
}

impl Exit {
    /// The code that Kubernetes sees: the exit code, or 128 + signal.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Exit::Code(code) => code,
            Exit::Signal(signal) => 128 + signal,
        }
    }

    /// The signal, or 0.
    #[must_use]
    pub fn signal(self) -> i32 {
        match self {
            Exit::Code(_) => 0,
            Exit::Signal(signal) => signal,
        }
    }
}

/// State of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Never started.
    Fresh,
    /// Being started.
    Starting,
    /// Running.
    Running,
    /// Signalled for a restart; processes may remain.
    Stopping,
    /// No process remains; waits for a release.
    Parked,
    /// Exited by itself, not 0.
    Exited(Exit),
    /// Exited 0 by itself.
    Done,
}

/// What is sent to the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// State of the worker.
    pub phase: Phase,
    /// The generation that it runs or parks at.
    pub generation: Generation,
    /// Highest epoch seen.
    pub epoch: Epoch,
    /// Highest count of restarts seen.
    pub counted_restarts: u64,
    /// Grows with every change.
    pub revision: u64,
    /// When the phase (at this generation) was entered, or the heartbeat found late.
    pub since: UnixNanos,
    /// For people.
    pub detail: String,
    /// Set while processes remain that the agent cannot kill.
    pub needs_host_kill: bool,
    /// With `needs_host_kill`: when it was last requested. Processes started later are not covered.
    pub host_kill_before: BootNanos,
    /// Of a running worker; otherwise `Well`.
    pub heartbeat: Heartbeat,
    /// How the processes of this attempt were started. `None` before the first start, and for a
    /// worker without standbys.
    pub starts: Option<Starts>,
    /// `None` for a worker without standbys.
    pub standbys: Option<Standbys>,
    /// What the worker says of its work in this attempt.
    pub progress: Progress,
}

/// How the processes of an attempt were started: the worker, and those that it starts through the
/// agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starts {
    /// From a standby.
    pub standby: u32,
    /// Without one.
    pub cold: u32,
    /// CPU time of the imports that a standby had done before its release; the most of any.
    pub ahead: Duration,
}
