//! Prometheus metrics of restarts.

use lockstep_api::JobSet;
use lockstep_core::restart::{Announcement, Generation, Reason, Timeline};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};

pub(super) use standbys::GroupStandbys;
use standbys::StandbyMetrics;

use super::phases::{Phase, phases, total};
use super::pod_replacer::Replaced;
use crate::telemetry::metrics::Metrics;

mod standbys;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RestartLabels {
    /// `Supervised` or `Plain`.
    group: String,
    /// `group`, or `worker` for the restart of one worker.
    scope: &'static str,
    /// The highest level that it reached: `Process`, `Container`, `Pod` or `Recreate`.
    level: &'static str,
    /// `crash` or `deliberate`.
    kind: &'static str,
    /// The reason, as in `status.inPlaceRestart.cause`.
    cause: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: &'static str,
    /// The highest level that the restart reached.
    level: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PodLabels {
    /// `created` or `failed`.
    result: &'static str,
}

/// Counters and histograms of restarts, over all groups.
#[derive(Clone)]
pub(super) struct RestartMetrics {
    restarts: Family<RestartLabels, Counter>,
    exhausted: Counter,
    pods: Family<PodLabels, Counter>,
    phases: Family<PhaseLabels, Histogram, fn() -> Histogram>,
    standbys: StandbyMetrics,
}

/// Buckets from a millisecond to half a minute.
fn histogram() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

impl RestartMetrics {
    /// Registers the metrics, once for each term of a leader.
    pub(super) fn register(metrics: &Metrics) -> Self {
        let restarts = Self {
            restarts: Family::default(),
            exhausted: Counter::default(),
            pods: Family::default(),
            phases: Family::new_with_constructor(histogram),
            standbys: StandbyMetrics::register(metrics),
        };
        for result in ["created", "failed"] {
            restarts.pods.get_or_create(&PodLabels { result }).inc_by(0);
        }
        metrics.register(|registry| {
            registry.register(
                "lockstep_restarts",
                "Restarts of groups that have ended with all workers running",
                restarts.restarts.clone(),
            );
            registry.register(
                "lockstep_restarts_exhausted",
                "Groups that have used up maxRestarts",
                restarts.exhausted.clone(),
            );
            registry.register(
                "lockstep_replacement_pods",
                "Lost pods of groups that the control plane has replaced, or has failed to replace for several seconds",
                restarts.pods.clone(),
            );
            registry.register(
                "lockstep_restart_phase_seconds",
                "Time of each phase of a restart in place: detect (failure to decision), push (decision to handed to the streams of all nodes), \
                 write (decision to durable), stop (decision to last worker stopped), park (last worker stopped to known here), release, run (release to last worker started), and total",
                restarts.phases.clone(),
            );
        });
        restarts
    }

    pub(super) fn announced(&self, jobset: &JobSet, announcement: &Announcement) {
        match announcement {
            Announcement::Restarted {
                scope,
                timeline,
                cause,
                level,
            } => {
                let labels = RestartLabels {
                    group: kind(jobset),
                    scope: scope.as_str(),
                    level: level.as_str(),
                    kind: crash_or_deliberate(cause.reason),
                    cause: cause.reason.as_str(),
                };
                self.restarts.get_or_create(&labels).inc();
                self.observe(timeline, level.as_str());
            }
            Announcement::Exhausted { .. } => {
                self.exhausted.inc();
            }
            Announcement::Restarting { .. }
            | Announcement::Recreating { .. }
            | Announcement::Escalated { .. }
            | Announcement::Climbed { .. }
            | Announcement::Blocked(_) => {}
        }
    }

    pub(super) fn pod(&self, replaced: &Replaced) {
        let result = match replaced {
            Replaced::Created(_) => "created",
            Replaced::Failed(..) => "failed",
        };
        self.pods.get_or_create(&PodLabels { result }).inc();
    }

    /// The part of a group in the metrics of standbys. Its restarts up to this generation are not
    /// counted.
    pub(super) fn standbys(&self, before: Generation) -> GroupStandbys {
        self.standbys.of_group(before)
    }

    fn observe(&self, timeline: &Timeline, level: &'static str) {
        for phase in phases(timeline).chain(total(timeline)) {
            let labels = PhaseLabels {
                phase: phase.name,
                level,
            };
            self.phases.get_or_create(&labels).observe(seconds(phase));
        }
    }
}

/// `deliberate` if a user requested the restart, `crash` if something failed.
pub(super) fn crash_or_deliberate(reason: Reason) -> &'static str {
    match reason {
        Reason::ManualRequest => "deliberate",
        _ => "crash",
    }
}

/// The kind of the group, as the restart wrote it.
fn kind(jobset: &JobSet) -> String {
    let status = jobset
        .status
        .as_ref()
        .and_then(|status| status.in_place_restart.as_ref());
    let kind = status.and_then(|status| status.kind.as_ref());
    kind.map(ToString::to_string).unwrap_or_default()
}

#[expect(clippy::cast_precision_loss, reason = "seconds, for a histogram")]
fn seconds(phase: Phase) -> f64 {
    phase.to.0.saturating_sub(phase.from.0) as f64 / 1e9
}
