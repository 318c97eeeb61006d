//! How long to wait before a failed request to the API server is repeated.
//!
//! Promises: repeated failures are retried less and less often, and never given up.

use std::time::Duration;

use lockstep_mutants::mutant;

#[cfg(test)]
mod tests;

/// The first and the longest wait after a failure.
const FAILURE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(300));
/// The longest time for which changes are ignored after failures.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// The first and the longest wait after a failed write of a group's status. A restart waits for it.
const WRITE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The wait after the second conflict of such writes in a row, and the longest wait.
const CONFLICT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// How long to wait after this many failures in a row.
#[must_use]
pub fn delay(failures: u32) -> Duration {
    doubled(FAILURE, failures)
}

/// How long changes are ignored after this many failures in a row. A change may be what was
/// missing, but others can write as often as they like. After the first failure it is zero, since
/// the change is often what caused it.
#[must_use]
pub fn rest(failures: u32) -> Duration {
    match failures.checked_sub(1) {
        None | Some(0) => Duration::ZERO,
        Some(others) => delay(others).min(LONGEST_REST),
    }
}

/// The wait after this many in a row. Each wait is twice as long as the one before.
fn doubled((first, longest): (Duration, Duration), in_a_row: u32) -> Duration {
    mutant!(RetryAtOnce => Duration::ZERO);
    let factor = 2_u32.saturating_pow(in_a_row.saturating_sub(1));
    first.saturating_mul(factor).min(longest)
}

/// Failed writes of one group's status since the last one that succeeded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatusWrites {
    failures: u32,
    conflicts: u32,
}

impl StatusWrites {
    /// A write succeeded.
    pub fn done(&mut self) {
        *self = Self::default();
    }

    /// A write was refused, or its outcome is unknown. Returns how long to wait.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        doubled(WRITE, self.failures)
    }

    /// Another process has written in between. Returns how long to wait: zero the first time, since
    /// this process's own reconciler causes such conflicts.
    pub fn conflicted(&mut self) -> Duration {
        self.conflicts = self.conflicts.saturating_add(1);
        match self.conflicts.checked_sub(1) {
            None | Some(0) => Duration::ZERO,
            Some(others) => doubled(CONFLICT, others),
        }
    }
}
