//! What the agent takes in, its status, and its actions.

use std::time::Duration;

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
    /// The count that the worker should have.
    pub generation: Generation,
    /// Counted restarts so far.
    pub counter: u64,
    /// Start if parked at `generation`.
    pub release: bool,
    /// This incarnation is named in the release: it may start its worker for the first time. A
    /// former leader's late orders cannot name newer incarnations.
    pub start_fresh: bool,
    /// Between SIGTERM and SIGKILL.
    pub grace: Duration,
    /// Exit codes with which the agent itself exits.
    pub terminal: Vec<Codes>,
    /// Longest time between two heartbeats of the worker; zero: none are required.
    pub heartbeat_timeout: Duration,
    /// How long a started worker may take until its first heartbeat; zero: no limit.
    pub ready_timeout: Duration,
}

/// Exit codes that Kubernetes must see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Codes {
    /// Every code but these, and never 0.
    pub negated: bool,
    /// Codes.
    pub codes: Vec<i32>,
}

impl Codes {
    /// For a code other than 0, which is Done before the rules apply.
    pub(super) fn matches(&self, code: i32) -> bool {
        self.codes.contains(&code) != self.negated
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
    /// The count that it runs or parks at.
    pub generation: Generation,
    /// Highest epoch seen.
    pub epoch: Epoch,
    /// Highest counter seen.
    pub counter: u64,
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

/// The interpreters that wait for the next attempt, see [`Source`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standbys {
    /// How many the next attempt can use.
    pub wanted: u32,
    /// How many of them have imported what the last attempt had.
    pub ready: u32,
    /// Resident memory of those, in KiB, when they became ready.
    pub memory_kib: u64,
    /// Modules that one of them has imported; the most of any.
    pub modules: u32,
    /// Why there are fewer than wanted, or none can be; empty if there is no reason.
    pub reason: String,
}

/// What becomes the worker's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A new process.
    Cold,
    /// The worker's standby: a process that the agent started ahead and that waits to go on. It
    /// confirms that, or ends without having run anything of the worker.
    Standby,
}

/// The outcome of a round of SIGKILL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KillReport {
    /// The kernel refused at least one of them.
    pub denied: bool,
    /// New processes appeared until the round gave up.
    pub forking: bool,
    /// There are processes that the agent cannot see.
    pub unseen: bool,
    /// The processes that are left, for people.
    pub note: String,
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

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the status to the daemon.
    Report,
    /// Start the worker. A cold start is answered with `Started` or `StartFailed`; that of the
    /// standby with `Started` or `StandbyRefused`.
    Start {
        /// The count to start it with.
        generation: Generation,
        /// From what.
        source: Source,
    },
    /// Start standbys for the next attempt; answered with `StandbyReady` or `StandbyGone`.
    Warm,
    /// End all standbys that wait; answered with `StandbyGone` for the worker's.
    EndStandbys,
    /// SIGKILL to the standby that was released and does not confirm it.
    GiveUpStandby,
    /// SIGTERM to every process of the tree.
    Terminate,
    /// SIGKILL to every process of the tree; answered with `Killed`. `all`: to every process of the
    /// container.
    Kill {
        /// Sessions of `kubectl exec` too.
        all: bool,
    },
    /// Pass a signal on to the worker.
    Forward(i32),
    /// A line for the log.
    Say(String),
    /// Exit. `flush`: send the report first, within a time limit.
    Exit {
        /// Exit code of the container.
        code: i32,
        /// Send the report first.
        flush: bool,
    },
}
