//! What the agent does, and what a round of SIGKILL comes to.

use super::status::Generation;

/// What becomes the worker's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A new process.
    Cold,
    /// The worker's standby: a process that the agent started ahead and that waits to go on. It
    /// confirms that, or ends without having run anything of the worker.
    Standby,
}

/// What to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send the status to the daemon.
    Report,
    /// Start the worker. A cold start is answered with `Started` or `StartFailed`; that of the
    /// standby with `Started` or `StandbyRefused`.
    Start {
        /// The generation to start it with.
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
