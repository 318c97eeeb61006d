//! Prometheus metrics of gangs.

use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

use crate::telemetry::metrics::Metrics;

/// Metrics of gangs, over all JobSets.
#[derive(Clone)]
pub(super) struct GangMetrics {
    seconds: Histogram,
    timeouts: Counter,
    waiting: Gauge,
}

impl GangMetrics {
    /// Registers the metrics, once for each term of a leader.
    pub(super) fn register(metrics: &Metrics) -> Self {
        let gangs = Self {
            // From a tenth of a second to an hour.
            seconds: Histogram::new(exponential_buckets(0.1, 2.0, 16)),
            timeouts: Counter::default(),
            waiting: Gauge::default(),
        };
        metrics.register(|registry| {
            registry.register(
                "lockstep_gang_seconds",
                "Time from when the Jobs of a gang were last allowed to run until its whole minimum was bound to nodes; each back-off starts it again",
                gangs.seconds.clone(),
            );
            registry.register(
                "lockstep_gang_timeouts",
                "Gangs whose minimum was not bound to nodes in time",
                gangs.timeouts.clone(),
            );
            registry.register(
                "lockstep_gangs_waiting",
                "Gangs whose minimum is not bound to nodes yet",
                gangs.waiting.clone(),
            );
        });
        gangs
    }

    /// A gang's minimum is bound.
    pub(super) fn bound(&self, took: Duration) {
        self.seconds.observe(took.as_secs_f64());
    }

    /// A gang was not bound in time.
    pub(super) fn timed_out(&self) {
        self.timeouts.inc();
    }

    /// How many gangs are not bound yet.
    pub(super) fn waiting(&self, gangs: usize) {
        self.waiting.set(i64::try_from(gangs).unwrap_or(i64::MAX));
    }
}
