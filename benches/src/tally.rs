//! Counts what workers tell, and says when the last of them has.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::message::{News, now};

/// The counts of one group.
pub(crate) struct Tally {
    group: usize,
    workers: usize,
    /// Takes the news.
    say: Box<dyn Fn(News) + Send + Sync>,
    has: Mutex<BTreeMap<u32, usize>>,
    runs: Mutex<BTreeMap<u64, usize>>,
    /// How often any of them was told anything.
    told: AtomicU64,
}

impl Tally {
    pub(crate) fn new(group: usize, workers: usize, say: impl Fn(News) + Send + Sync + 'static) -> Self {
        Self {
            group,
            workers,
            say: Box::new(say),
            has: Mutex::default(),
            runs: Mutex::default(),
            told: AtomicU64::new(0),
        }
    }

    /// Whose counts these are.
    pub(crate) fn group(&self) -> usize {
        self.group
    }

    /// A worker was told something, new or not.
    pub(crate) fn told(&self) {
        self.told.fetch_add(1, Ordering::Relaxed);
    }

    /// Says how often that was.
    pub(crate) fn say_told(&self) {
        (self.say)(News::Told {
            group: self.group,
            times: self.told.load(Ordering::Relaxed),
        });
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
                group: self.group,
                generation,
                at: now(),
            });
        }
    }

    /// A worker is about to report that it failed.
    pub(crate) fn fails(&self) {
        (self.say)(News::Failed {
            group: self.group,
            at: now(),
        });
    }

    fn is_last<K: Ord>(&self, counts: &Mutex<BTreeMap<K, usize>>, key: K) -> bool {
        let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(key).or_default();
        *count += 1;
        *count == self.workers
    }
}
