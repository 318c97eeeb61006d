//! How long to wait before something is asked of the API server again that has come to nothing.
//!
//! Promises: what comes to nothing again and again is tried ever more rarely, and never given up.

use std::time::Duration;

use lockstep_mutants::mutant;

#[cfg(test)]
mod tests;

/// The first and the longest wait after a failure.
const FAILURE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(300));
/// The longest time for which changes are not acted upon after failures.
const LONGEST_REST: Duration = Duration::from_secs(1);
/// The first and the longest wait after a write of a group's status that has failed. A restart
/// waits for it.
const WRITE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));
/// The wait after the second conflict of such writes in a row, and the longest one.
const CONFLICT: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));

/// How long to wait after so many failures in a row.
#[must_use]
pub fn delay(failures: u32) -> Duration {
    doubled(FAILURE, failures)
}

/// How long after the last of so many failures in a row a change is not acted upon yet: it may be
/// all that was missing, but others may write as often as they like. Not at all after the first,
/// since what has come in between is often the change itself.
#[must_use]
pub fn rest(failures: u32) -> Duration {
    match failures.checked_sub(1) {
        None | Some(0) => Duration::ZERO,
        Some(others) => delay(others).min(LONGEST_REST),
    }
}

/// The wait after the last of so many in a row: each is twice as long as the one before.
fn doubled((first, longest): (Duration, Duration), in_a_row: u32) -> Duration {
    mutant!(RetryAtOnce => Duration::ZERO);
    let factor = 2_u32.saturating_pow(in_a_row.saturating_sub(1));
    first.saturating_mul(factor).min(longest)
}

/// What has become of the writes of one group's status since one was last done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StatusWrites {
    failures: u32,
    conflicts: u32,
}

impl StatusWrites {
    /// One is done.
    pub fn done(&mut self) {
        *self = Self::default();
    }

    /// One was refused, or its outcome is unknown. Returns how long to wait.
    pub fn failed(&mut self) -> Duration {
        self.failures = self.failures.saturating_add(1);
        doubled(WRITE, self.failures)
    }

    /// Another process has written in between. Returns how long to wait: not at all after the first
    /// time, which a reconciler beside this makes.
    pub fn conflicted(&mut self) -> Duration {
        self.conflicts = self.conflicts.saturating_add(1);
        match self.conflicts.checked_sub(1) {
            None | Some(0) => Duration::ZERO,
            Some(others) => doubled(CONFLICT, others),
        }
    }
}
