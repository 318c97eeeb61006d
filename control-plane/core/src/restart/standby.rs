//! What agents report about standbys: processes that are started ahead for the next attempt of a
//! worker.
//!
//! It is for people and for metrics. No decision depends on it, and a change of it alone calls for
//! no step.

/// How an agent has started its worker, and what it has started ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StandbyReport {
    /// How the processes of the current attempt were started. `None` before the first start.
    pub starts: Option<Starts>,
    /// The processes that wait for the next attempt. `None` if the worker asks for none.
    pub standbys: Option<Standbys>,
}

/// How the processes of an attempt were started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Starts {
    /// From a standby.
    pub standby: u32,
    /// Without one.
    pub cold: u32,
    /// CPU time of the imports that a standby had done before the release, in milliseconds; the
    /// most of any.
    pub ahead_ms: u32,
}

/// The processes that an agent has started ahead.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Standbys {
    /// How many the next attempt can use.
    pub wanted: u32,
    /// How many of them have imported what the last attempt had.
    pub ready: u32,
    /// Resident memory of all, in KiB, when they were ready.
    pub memory_kib: u64,
    /// Modules that one of them has imported; the most of any.
    pub modules: u32,
    /// Why there are fewer than wanted, or none can be. Empty if there is no reason.
    pub reason: String,
}
