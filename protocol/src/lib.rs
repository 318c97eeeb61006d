//! The numbers of the restart protocol, and how a worker runs and ends, as newtypes: an epoch is
//! never mistaken for a generation, nor one clock for another. [`pods`] has the marks of pods.
//!
//! The control plane's core, the node daemon and the pod agent share them. Wire types stop at a
//! `convert.rs` and become these. Nothing here does I/O.

use std::fmt;

pub mod pods;
pub mod progress;
pub mod standby;

/// The restart attempt that all workers of a group should run: 0 at first, and a higher one with
/// each restart and each suspension. It never falls while the JobSet's UID lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Generation(pub u64);

impl Generation {
    /// The highest one that a status can hold.
    pub const LAST: Self = Self(u64::MAX >> 1);

    /// The generation after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1)).min(Self::LAST)
    }

    /// The generation before this one; that of 0 is 0.
    #[must_use]
    pub fn previous(self) -> Self {
        Self(self.0.saturating_sub(1))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Fences leaders: the Lease's resourceVersion at acquisition. A message with a lower epoch than
/// the highest seen is ignored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Epoch(pub u64);

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A time of the wall clock: nanoseconds since the Unix epoch.
///
/// The control plane derives it from a monotonic clock, so that a stepped wall clock moves no
/// deadline. A node's clock may step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixNanos(pub i64);

impl UnixNanos {
    /// This time plus `millis` milliseconds.
    #[must_use]
    pub fn plus_millis(self, millis: u64) -> Self {
        let nanos = i64::try_from(millis)
            .unwrap_or(i64::MAX)
            .saturating_mul(1_000_000);
        Self(self.0.saturating_add(nanos))
    }
}

/// A time of the boot clock, which is never set: nanoseconds since the machine booted
/// (`CLOCK_BOOTTIME`, which also gives processes their start times).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct BootNanos(pub u64);

/// How a process or a container ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Exit {
    /// Exit code, or 128 + signal.
    pub code: i32,
    /// Signal number; 0 if it was no signal.
    pub signal: i32,
}

impl Exit {
    /// The unobserved end of a container. It is never mistaken for a success, nor for a death by
    /// SIGKILL, which names its signal. Kubernetes gives such a container 137 as well.
    pub const UNKNOWN: Self = Self { code: 137, signal: 0 };
}

/// Exit codes of a worker that are terminal: they end its container, so that Kubernetes sees them.
/// A rule of the Job's podFailurePolicy names them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TerminalCodes {
    /// Every code but `codes`, and never 0.
    pub negated: bool,
    /// Exit codes.
    pub codes: Vec<i32>,
}

impl TerminalCodes {
    /// True if this code is terminal. It is never called with 0, which completes a worker.
    #[must_use]
    pub fn matches(&self, code: i32) -> bool {
        self.codes.contains(&code) != self.negated
    }
}

/// State of a running worker's heartbeat.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Heartbeat {
    /// It arrives in time, or none is required.
    #[default]
    Well,
    /// One is required since the worker was started, and none has arrived yet.
    Awaited,
    /// None has arrived for longer than `lockstep.dev/heartbeat-timeout`.
    Missed,
    /// The first one has not arrived within `lockstep.dev/ready-timeout`.
    Overdue,
}

impl Heartbeat {
    /// True if the worker runs but does not work.
    #[must_use]
    pub fn is_late(self) -> bool {
        matches!(self, Self::Missed | Self::Overdue)
    }
}

/// At most this many bytes of a text that a terminal will show, without control characters.
#[must_use]
pub fn beginning(mut text: String, most: usize) -> String {
    text.truncate(text.floor_char_boundary(most));
    text.retain(|sign| !sign.is_control());
    // What was cut off must not stay in memory.
    text.shrink_to_fit();
    text
}
