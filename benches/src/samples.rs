//! The measurements of one design, and statistics on them.

use serde_json::{Value, json};

/// Times of one kind, in milliseconds.
#[derive(Debug, Default)]
pub(crate) struct Times(Vec<f64>);

impl Times {
    /// Adds the time between two readings of the clock.
    pub(crate) fn add(&mut self, from: u64, to: u64) {
        self.push(to.saturating_sub(from) as f64 / 1e6);
    }

    pub(crate) fn push(&mut self, time: f64) {
        self.0.push(time);
    }

    /// A percentile (nearest rank).
    pub(crate) fn percentile(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).copied().unwrap_or(f64::NAN)
    }

    pub(crate) fn count(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn json(&self) -> Value {
        json!({
            "rounds": self.0.len(), "median": self.percentile(50), "p99": self.percentile(99), "all": self.0,
        })
    }
}

/// CPU time of the server over many messages.
#[derive(Debug, Default)]
pub(crate) struct Cost {
    nanos: u64,
    of: usize,
}

impl Cost {
    /// Adds the cost of a number of messages.
    pub(crate) fn add(&mut self, nanos: u64, of: usize) {
        self.nanos += nanos;
        self.of += of;
    }

    /// Microseconds per message.
    pub(crate) fn each(&self) -> f64 {
        self.nanos as f64 / 1e3 / self.of as f64
    }
}

/// The measurements of one design at one size.
#[derive(Debug, Default)]
pub(crate) struct Samples {
    /// Until all are connected for the first time.
    pub(crate) connect: Times,
    /// From the sending of desired state until the last worker has it.
    pub(crate) push: Times,
    /// From the sending of desired state until the last worker runs it and has sent its report.
    pub(crate) raise: Times,
    /// From the failure of a worker, just before its report, until the server knows that all run
    /// again.
    pub(crate) trip: Times,
    /// From the failure of a worker until the last worker runs again.
    pub(crate) running: Times,
    /// From the decision until all workers are known to be parked.
    pub(crate) parked: Times,
    /// From the kill of the server until all are connected to its successor.
    pub(crate) storm: Times,
    /// The same with a worker that fails before any client is connected, until all are known to run
    /// again.
    pub(crate) served: Times,
    /// CPU per stream for a push, for a push and a report, and for a whole restart.
    pub(crate) push_cost: Cost,
    pub(crate) raise_cost: Cost,
    pub(crate) trip_cost: Cost,
    /// CPU per stream of the successor, from its start until all were connected.
    pub(crate) storm_cost: Cost,
    /// CPU per stream of the clients for a restart. All of them are in one process.
    pub(crate) fleet_cost: Cost,
    /// KiB of the server per stream: idle, after the rounds, and after further restarts.
    pub(crate) idle: Times,
    pub(crate) busy: Times,
    pub(crate) restarted: Times,
    /// Percent of a core that the server takes while nothing changes, and while all workers say
    /// once a second which step they have done.
    pub(crate) load: Times,
    pub(crate) load_with_steps: Times,
    /// Like `trip`, while they do.
    pub(crate) trip_with_steps: Times,
    /// Peak KiB of the successor.
    pub(crate) storm_peak: Times,
    /// Peak KiB of the first server.
    pub(crate) peak: Times,
}

impl Samples {
    pub(crate) fn json(&self) -> Value {
        json!({
            "ms": {
                "connect": self.connect.json(), "push": self.push.json(), "raise": self.raise.json(),
                "round_trip": self.trip.json(), "running": self.running.json(), "parked": self.parked.json(),
                "reconnect": self.storm.json(), "failure_meanwhile": self.served.json(),
                "round_trip_with_steps": self.trip_with_steps.json(),
            },
            "server_cpu_us_per_stream": {
                "push": self.push_cost.each(), "push_and_report": self.raise_cost.each(),
                "restart": self.trip_cost.each(), "reconnect": self.storm_cost.each(),
            },
            "server_load_percent": {
                "idle": self.load.percentile(50), "with_steps": self.load_with_steps.percentile(50),
            },
            "clients_cpu_us_per_stream": {"restart": self.fleet_cost.each()},
            "server_kib_per_stream": {
                "idle": self.idle.percentile(50), "after_rounds": self.busy.percentile(50),
                "after_restarts": self.restarted.percentile(50),
            },
            "server_kib_peak": {
                "steady": self.peak.percentile(50), "reconnect": self.storm_peak.percentile(50),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let mut times = Times::default();
        for time in [5.0, 1.0, 3.0, 2.0, 4.0] {
            times.push(time);
        }
        assert_eq!((times.percentile(50), times.percentile(99)), (3.0, 5.0));
        assert!(Times::default().percentile(50).is_nan());
    }
}
