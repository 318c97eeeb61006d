//! Runs many seeds on several threads.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A seed that violates an invariant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The seed.
    pub seed: u64,
    /// Which invariant it violates, and how.
    pub violation: String,
}

/// The outcome of many seeds.
#[derive(Debug, Default)]
pub struct Report {
    /// Number of seeds that ran.
    pub seeds: u64,
    /// Number of events in all of them.
    pub events: u64,
    /// Number of restarts in all of them.
    pub restarts: u64,
    /// How many of the restarts were worker restarts.
    pub worker_restarts: u64,
    /// How many of the worker restarts were requested.
    pub requested: u64,
    /// Number of containers that were stopped for restarts in all of them.
    pub stops: u64,
    /// How many of these containers lacked the agent that they should have had.
    pub without_agent: u64,
    /// Number of starts from a standby in all of them.
    pub from_standby: u64,
    /// Number of ranks that went on from a standby in all of them.
    pub ranks_from_standby: u64,
    /// The first failures, by seed.
    pub failures: Vec<Failure>,
}

/// Runs seeds on this many threads until all have run or `most` have failed. It calls `on_failure`
/// at each failure.
#[must_use]
pub fn soak(seeds: Range<u64>, threads: usize, most: usize, on_failure: impl Fn(&Failure) + Sync) -> Report {
    let next = AtomicU64::new(seeds.start);
    let report = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end {
                        return;
                    }
                    let outcome = crate::run(seed);
                    let mut report = report.lock().unwrap_or_else(PoisonError::into_inner);
                    report.seeds += 1;
                    report.events += outcome.events;
                    report.restarts += u64::from(outcome.restarts);
                    report.worker_restarts += u64::from(outcome.worker_restarts);
                    report.requested += u64::from(outcome.requested);
                    report.stops += u64::from(outcome.stops);
                    report.without_agent += u64::from(outcome.without_agent);
                    report.from_standby += u64::from(outcome.from_standby);
                    report.ranks_from_standby += u64::from(outcome.ranks_from_standby);
                    if let Some(violation) = outcome.violation {
                        let failure = Failure { seed, violation };
                        on_failure(&failure);
                        report.failures.push(failure);
                    }
                    if report.failures.len() >= most {
                        return;
                    }
                }
            });
        }
    });
    let mut report = report.into_inner().unwrap_or_else(PoisonError::into_inner);
    report.failures.sort_by_key(|failure| failure.seed);
    report
}
