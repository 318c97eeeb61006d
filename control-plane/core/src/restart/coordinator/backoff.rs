//! Delays the release of a group that fails soon after each release.

use super::super::{Cause, Exit, Identity, UnixNanos};

/// A failure within this time of the release counts as quick, nanoseconds.
const QUICK: i64 = 5_000_000_000;
/// The first wait, milliseconds.
const FIRST_MS: u64 = 1_000;
/// Consecutive quick failures of one worker that cause no delay.
const FREE: u32 = 1;
/// Consecutive quick failures of any workers that end by themselves and cause no delay. More point
/// to a common cause. A worker that is killed does not count.
const FREE_OF_ALL: u32 = 5;

/// Counts quick failures, and computes how long to wait.
#[derive(Debug, Clone, Default)]
pub(super) struct Backoff {
    released_at: Option<UnixNanos>,
    /// Consecutive quick failures, of the last worker to fail and of all workers.
    quick: u32,
    quick_of_all: u32,
    worker: Option<Identity>,
    until: Option<UnixNanos>,
}

impl Backoff {
    /// The back-off of a worker that was released with the group, and restarts by itself from now
    /// on.
    pub(super) fn of_one(&self) -> Self {
        Self {
            released_at: self.released_at,
            ..Self::default()
        }
    }

    /// The group, or the worker, is released.
    pub(super) fn released(&mut self, now: UnixNanos) {
        self.released_at = Some(now);
        self.until = None;
    }

    /// Notes a failure that begins a restart. The release is delayed from the second consecutive
    /// quick failure of one worker on, and from the sixth of any workers that end by themselves.
    pub(super) fn failed(&mut self, cause: &Cause, longest_ms: u64, now: UnixNanos) {
        let worker = cause.identity.as_ref();
        let quick = self
            .released_at
            .is_some_and(|released| now.0.saturating_sub(released.0) <= QUICK);
        let same = self.worker.as_ref() == worker;
        self.quick = match (quick, same) {
            (true, true) => self.quick.saturating_add(1),
            (true, false) => 1,
            (false, _) => 0,
        };
        self.quick_of_all = match quick && has_ended_by_itself(cause) {
            true => self.quick_of_all.saturating_add(1),
            false => 0,
        };
        self.worker = worker.cloned();
        let of_one = self.quick.checked_sub(FREE + 1);
        let of_all = self.quick_of_all.checked_sub(FREE_OF_ALL + 1);
        self.until = of_one.max(of_all).map(|times| {
            let wait = FIRST_MS.saturating_mul(2_u64.saturating_pow(times));
            now.plus_millis(wait.min(longest_ms))
        });
    }

    /// True if the group may be released.
    pub(super) fn is_over(&self, now: UnixNanos) -> bool {
        self.until.is_none_or(|until| now >= until)
    }

    /// When it may be released, unless that is now.
    pub(super) fn over_at(&self) -> Option<UnixNanos> {
        self.until
    }
}

/// True if it was neither killed nor asked to end.
fn has_ended_by_itself(cause: &Cause) -> bool {
    cause.exit.is_some_and(was_not_ended)
}

/// True if neither SIGKILL nor SIGTERM caused this exit.
pub(super) fn was_not_ended(exit: Exit) -> bool {
    const FROM_OUTSIDE: [i32; 2] = [9, 15];
    !FROM_OUTSIDE.contains(&exit.signal)
}

#[cfg(test)]
mod tests {
    use super::super::super::Reason;
    use super::*;

    /// The failure of a worker that ended with this code, or by this signal.
    fn ended(index: u32, code: i32, signal: i32) -> Cause {
        Cause {
            reason: Reason::WorkerExited,
            identity: Some(Identity {
                job: "js-a-0".into(),
                index,
                container: "worker".into(),
            }),
            pod: String::new(),
            node: String::new(),
            exit: Some(Exit { code, signal }),
            at: None,
            said: None,
        }
    }

    fn at(millis: u64) -> UnixNanos {
        UnixNanos(0).plus_millis(millis)
    }

    /// The waits after failures that come this long after each release.
    fn waits(after_ms: &[u64], longest_ms: u64) -> Vec<u64> {
        waits_of(after_ms, longest_ms, |_| ended(0, 1, 0))
    }

    fn waits_of(after_ms: &[u64], longest_ms: u64, failure: fn(u32) -> Cause) -> Vec<u64> {
        let mut backoff = Backoff::default();
        let mut now = 1_000_000;
        let mut waits = Vec::new();
        for (round, after) in after_ms.iter().enumerate() {
            backoff.released(at(now));
            now += after;
            backoff.failed(&failure(u32::try_from(round).unwrap()), longest_ms, at(now));
            let until = backoff.over_at().unwrap_or(at(now));
            waits.push(u64::try_from(until.0 - at(now).0).unwrap() / 1_000_000);
            assert_eq!(backoff.is_over(at(now)), until == at(now));
            now += waits.last().unwrap();
            assert!(backoff.is_over(at(now)));
        }
        waits
    }

    #[test]
    fn the_second_quick_failure_and_those_after_it_wait_ever_longer() {
        let quick = [100; 9];
        assert_eq!(
            waits(&quick, 60_000),
            [0, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]
        );
    }

    #[test]
    fn a_group_that_ran_for_a_while_starts_over() {
        assert_eq!(waits(&[100, 100, 5001, 100, 100], 60_000), [0, 1000, 0, 0, 1000]);
    }

    #[test]
    fn failures_of_different_workers_wait_from_the_sixth_on() {
        let quick = [100; 8];
        let turns = |round| ended(round % 2, 1, 0);
        assert_eq!(waits_of(&quick, 60_000, turns), [0, 0, 0, 0, 0, 1000, 2000, 4000]);
        let now_and_then = [100, 100, 100, 100, 5001, 100, 100, 100];
        assert_eq!(waits_of(&now_and_then, 60_000, turns), [0; 8]);
    }

    #[test]
    fn workers_that_are_killed_one_after_the_other_do_not_wait() {
        let killed = |round| ended(round % 2, 137, 9);
        assert_eq!(waits_of(&[100; 9], 60_000, killed), [0; 9]);
    }

    #[test]
    fn no_wait_can_be_asked_for() {
        assert_eq!(waits(&[1, 1, 1, 1], 0), [0, 0, 0, 0]);
    }
}
