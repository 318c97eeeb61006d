//! What agents report about standbys: processes that are started ahead for the next attempt of a
//! worker.
//!
//! It is for people and for metrics. No decision depends on it. Any process of a pod may claim to
//! be its agent, and a node may claim anything of its pods. So the daemon and the control plane
//! both bound what they read.

use crate::beginning;

/// Longest reason for missing standbys, in bytes. A longer one is cut off.
pub const LONGEST_REASON: usize = 200;
/// Most processes of an attempt, started or standing by.
pub const MOST_PROCESSES: u32 = 1024;
/// Most imported modules: the agent's list of them has at most 256 KiB.
pub const MOST_MODULES: u32 = 128 << 10;
/// Most memory of standbys, in KiB: a petabyte, so that sums do not overflow.
pub const MOST_MEMORY_KIB: u64 = 1 << 40;
/// Longest CPU time of imports, in milliseconds: a day.
pub const LONGEST_AHEAD_MS: u32 = 24 * 60 * 60 * 1000;

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

impl Starts {
    /// These, with each number cut to what an agent can mean.
    #[must_use]
    pub fn bounded(self) -> Self {
        Self {
            standby: self.standby.min(MOST_PROCESSES),
            cold: self.cold.min(MOST_PROCESSES),
            ahead_ms: self.ahead_ms.min(LONGEST_AHEAD_MS),
        }
    }
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

impl Standbys {
    /// These, with each number cut to what an agent can mean, and a reason that can be shown.
    #[must_use]
    pub fn bounded(self) -> Self {
        let wanted = self.wanted.min(MOST_PROCESSES);
        Self {
            wanted,
            ready: self.ready.min(wanted),
            memory_kib: self.memory_kib.min(MOST_MEMORY_KIB),
            modules: self.modules.min(MOST_MODULES),
            reason: beginning(self.reason, LONGEST_REASON),
        }
    }
}
