//! Counts reports of workers, and reports when the last of them has come.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::message::{BenchEvent, now};

/// The counts of one group.
pub(crate) struct Tally {
    group: usize,
    workers: usize,
    /// Receives the events.
    say: Box<dyn Fn(BenchEvent) + Send + Sync>,
    has: Mutex<BTreeMap<u32, usize>>,
    runs: Mutex<BTreeMap<u64, usize>>,
    /// Number of messages to the workers.
    messages: AtomicU64,
}

impl Tally {
    pub(crate) fn new(
        group: usize,
        workers: usize,
        say: impl Fn(BenchEvent) + Send + Sync + 'static,
    ) -> Self {
        Self {
            group,
            workers,
            say: Box::new(say),
            has: Mutex::default(),
            runs: Mutex::default(),
            messages: AtomicU64::new(0),
        }
    }

    /// The number of the group.
    pub(crate) fn group(&self) -> usize {
        self.group
    }

    /// Counts a message to a worker.
    pub(crate) fn count_message(&self) {
        self.messages.fetch_add(1, Ordering::Relaxed);
    }

    /// Reports the number of messages.
    pub(crate) fn report_messages(&self) {
        (self.say)(BenchEvent::Messages {
            group: self.group,
            times: self.messages.load(Ordering::Relaxed),
        });
    }

    /// Counts a worker that has received this value.
    pub(crate) fn has(&self, value: u32) {
        if self.is_last(&self.has, value) {
            (self.say)(BenchEvent::Has { value, at: now() });
        }
    }

    /// Counts a worker that runs this generation.
    pub(crate) fn runs(&self, generation: u64) {
        if self.is_last(&self.runs, generation) {
            (self.say)(BenchEvent::Runs {
                group: self.group,
                generation,
                at: now(),
            });
        }
    }

    /// Reports that a worker is about to report its failure.
    pub(crate) fn fails(&self) {
        (self.say)(BenchEvent::Failed {
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
