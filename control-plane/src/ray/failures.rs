//! How often something has failed in a row, and how long to wait before it is tried again.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::retry::delay;

/// Failures in a row, by what has failed.
pub(super) struct Failures<K>(Mutex<HashMap<K, u32>>);

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Failures<K> {
    /// Counts one more; returns how long to wait.
    pub(super) fn add(&self, key: K) -> Duration {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = all.entry(key).or_default();
        *failures = failures.saturating_add(1);
        delay(*failures)
    }

    /// It has worked, or is gone.
    pub(super) fn forget(&self, key: &K) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
