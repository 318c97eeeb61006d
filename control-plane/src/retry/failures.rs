//! How often something has failed in a row.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Mutex, PoisonError};

/// Failures in a row, by what has failed.
pub(crate) struct Failures<K>(Mutex<HashMap<K, u32>>);

impl<K> Default for Failures<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<K: Eq + Hash> Failures<K> {
    /// Counts one more; returns how many that makes.
    pub(crate) fn add(&self, key: K) -> u32 {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let failures = all.entry(key).or_default();
        *failures = failures.saturating_add(1);
        *failures
    }

    /// It has worked, or is gone.
    pub(crate) fn forget(&self, key: &K) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}
