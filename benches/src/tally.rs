//! Counts what workers tell, and says when the last of them has.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::message::{News, now, say};

/// The counts of one process.
pub(crate) struct Tally {
    workers: usize,
    has: Mutex<BTreeMap<u32, usize>>,
    runs: Mutex<BTreeMap<u64, usize>>,
}

impl Tally {
    pub(crate) fn new(workers: usize) -> Self {
        Self {
            workers,
            has: Mutex::default(),
            runs: Mutex::default(),
        }
    }

    /// A worker was told this value.
    pub(crate) fn has(&self, value: u32) {
        if self.is_last(&self.has, value) {
            say(News::Has { value, at: now() });
        }
    }

    /// A worker runs this generation.
    pub(crate) fn runs(&self, generation: u64) {
        if self.is_last(&self.runs, generation) {
            say(News::Runs {
                generation,
                at: now(),
            });
        }
    }

    fn is_last<K: Ord>(&self, counts: &Mutex<BTreeMap<K, usize>>, key: K) -> bool {
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_default();
        *count += 1;
        *count == self.workers
    }
}
