//! Prometheus metrics of standbys, and of how workers were started.
//!
//! Promises: each group counts towards the gauge with what its workers report now, and with nothing
//! once its task has ended. Each process is counted once per attempt, also across a change of the
//! leader: a leader counts the attempts of the restarts that it has begun.

use std::collections::BTreeMap;

use lockstep_core::restart::{Generation, Incarnation, Observed, Phase, Report, Starts};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;

use crate::telemetry::metrics::Metrics;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StandbyLabels {
    /// `ready` or `wanted`.
    state: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StartLabels {
    /// `standby` or `cold`.
    kind: &'static str,
}

/// The metrics of all groups.
#[derive(Clone, Default)]
pub(in crate::controllers::restart) struct StandbyMetrics {
    standbys: Family<StandbyLabels, Gauge>,
    starts: Family<StartLabels, Counter>,
}

/// The part of one group in them.
pub(in crate::controllers::restart) struct GroupStandbys {
    metrics: StandbyMetrics,
    /// What the gauge holds of this group.
    shown: Counts,
    /// The latest generation that a former leader may have counted.
    before: Generation,
    /// The starts that were counted, at the latest generation of each incarnation.
    counted: BTreeMap<Incarnation, (Generation, Starts)>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    ready: i64,
    wanted: i64,
}

impl StandbyMetrics {
    pub(super) fn register(metrics: &Metrics) -> Self {
        let all = Self::default();
        all.show(Counts::default());
        all.count(Starts::default());
        metrics.register(|registry| {
            registry.register(
                "lockstep_standbys",
                "Processes that agents are to start ahead for the next attempt of their workers (wanted), and those that wait for it (ready)",
                all.standbys.clone(),
            );
            registry.register(
                "lockstep_worker_starts",
                "Processes of workers that restarts have started from a standby, or without one although the workers ask for standbys (cold)",
                all.starts.clone(),
            );
        });
        all
    }

    /// The part of a group whose restarts up to this generation are not this leader's.
    pub(in crate::controllers::restart) fn of_group(&self, before: Generation) -> GroupStandbys {
        GroupStandbys {
            metrics: self.clone(),
            shown: Counts::default(),
            before,
            counted: BTreeMap::new(),
        }
    }

    /// Adds to the gauge.
    fn show(&self, more: Counts) {
        for (state, count) in [("ready", more.ready), ("wanted", more.wanted)] {
            self.standbys
                .get_or_create(&StandbyLabels { state })
                .inc_by(count);
        }
    }

    fn count(&self, starts: Starts) {
        for (kind, count) in [("standby", starts.standby), ("cold", starts.cold)] {
            self.starts
                .get_or_create(&StartLabels { kind })
                .inc_by(u64::from(count));
        }
    }
}

impl GroupStandbys {
    /// Takes in what the workers report now.
    pub(in crate::controllers::restart) fn count_starts(&mut self, observed: &Observed) {
        let reports = &observed.reports;
        self.counted
            .retain(|incarnation, _| reports.contains_key(incarnation));
        let mut now = Counts::default();
        for (incarnation, report) in reports {
            let Some(standby) = report.standby.as_deref() else {
                continue;
            };
            if let Some(standbys) = &standby.standbys
                && !matches!(report.phase, Phase::Done | Phase::Lost(_))
            {
                now.ready += i64::from(standbys.ready);
                now.wanted += i64::from(standbys.wanted);
            }
            if let Some(starts) = standby.starts {
                self.count(incarnation, report, starts);
            }
        }
        self.show(now);
    }

    /// Counts the starts of an attempt that were not counted yet.
    fn count(&mut self, incarnation: &Incarnation, report: &Report, starts: Starts) {
        // Before it runs, the report may hold the starts of the attempt before.
        let has_run = matches!(report.phase, Phase::Running | Phase::Exited(_) | Phase::Done);
        let generation = report.generation;
        let (at, known) = self.counted.get(incarnation).copied().unwrap_or_default();
        if !has_run || generation <= self.before || generation < at {
            return;
        }
        let known = if generation == at {
            known
        } else {
            Starts::default()
        };
        // An attempt starts more and more processes, and never fewer.
        let most = Starts {
            standby: starts.standby.max(known.standby),
            cold: starts.cold.max(known.cold),
            ..starts
        };
        if (generation, most) != (at, known) {
            self.metrics.count(Starts {
                standby: most.standby - known.standby,
                cold: most.cold - known.cold,
                ..most
            });
            self.counted.insert(incarnation.clone(), (generation, most));
        }
    }

    fn show(&mut self, now: Counts) {
        self.metrics.show(Counts {
            ready: now.ready - self.shown.ready,
            wanted: now.wanted - self.shown.wanted,
        });
        self.shown = now;
    }
}

impl Drop for GroupStandbys {
    fn drop(&mut self) {
        self.show(Counts::default());
    }
}

#[cfg(test)]
mod tests;
