//! Counts failures in a row, so that retries back off.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub(crate) use lockstep_core::common::retry::delay;
use lockstep_core::common::retry::rest;
use tokio::time::Instant;

/// Consecutive failures, by key.
pub(crate) struct Failures<K>(Mutex<HashMap<K, FailureCount>>);

/// The failures of one key.
struct FailureCount {
    number: u32,
    last: Instant,
}

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Failures<K> {
    /// Counts a failure; returns the new count.
    pub(crate) fn add(&self, key: K) -> u32 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let count = all.entry(key).or_insert(FailureCount { number: 0, last: now });
        count.number = count.number.saturating_add(1);
        count.last = now;
        count.number
    }

    /// How long the key still has to rest, no matter what changed.
    pub(crate) fn rests(&self, key: &K) -> Option<Duration> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = all.get(key)?;
        let left = rest(count.number).checked_sub(count.last.elapsed())?;
        (!left.is_zero()).then_some(left)
    }

    /// Forgets a key that succeeded or is gone.
    pub(crate) fn forget(&self, key: &K) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_change_after_failures_in_a_row_waits_for_a_moment() {
        let failures = Failures::default();
        assert_eq!(failures.rests(&"js"), None);
        assert_eq!(failures.add("js"), 1);
        assert_eq!(failures.rests(&"js"), None);
        assert_eq!(failures.add("js"), 2);
        assert_eq!(failures.rests(&"js"), Some(Duration::from_millis(100)));
        assert_eq!(failures.rests(&"other"), None);
        tokio::time::advance(Duration::from_millis(60)).await;
        assert_eq!(failures.rests(&"js"), Some(Duration::from_millis(40)));
        tokio::time::advance(Duration::from_millis(40)).await;
        assert_eq!(failures.rests(&"js"), None);
        failures.add("js");
        failures.forget(&"js");
        assert_eq!(failures.rests(&"js"), None);
    }
}
