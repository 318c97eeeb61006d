//! Counts what workers tell, and says when the last of them has.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use crate::message::{News, now};

/// The counts of one process.
pub(crate) struct Tally {
    workers: usize,
    /// Takes the news.
    say: Box<dyn Fn(News) + Send + Sync>,
    has: Mutex<BTreeMap<u32, usize>>,
    runs: Mutex<BTreeMap<u64, usize>>,
}

impl Tally {
    pub(crate) fn new(workers: usize, say: impl Fn(News) + Send + Sync + 'static) -> Self {
        Self {
            workers,
            say: Box::new(say),
            has: Mutex::default(),
            runs: Mutex::default(),
        }
    }

    /// A worker was told this value.
    pub(crate) fn has(&self, value: u32) {
        if self.is_last(&self.has, value) {
            (self.say)(News::Has { value, at: now() });
        }
    }

    /// A worker runs this generation.
    pub(crate) fn runs(&self, generation: u64) {
        if self.is_last(&self.runs, generation) {
            (self.say)(News::Runs {
                generation,
                at: now(),
            });
        }
    }

    /// A worker is about to report that it failed.
    pub(crate) fn fails(&self) {
        (self.say)(News::Failed { at: now() });
    }

    fn is_last<K: Ord>(&self, counts: &Mutex<BTreeMap<K, usize>>, key: K) -> bool {
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_default();
        *count += 1;
        *count == self.workers
    }
}
