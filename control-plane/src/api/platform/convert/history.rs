//! Restarts that were, to the wire.

use lockstep_core::restart::{Scope, UnixNanos};
use lockstep_proto::platform::v1 as pb;

use crate::controllers::restart::board::history::{Entry, Outcome};
use crate::controllers::restart::{Phase, phases};

/// One restart.
pub(in crate::api::platform) fn restart(entry: &Entry) -> pb::Restart {
    let (outcome, timeline) = match &entry.outcome {
        Outcome::UnderWay => (pb::RestartOutcome::UnderWay, None),
        Outcome::Done(timeline) => (pb::RestartOutcome::Done, Some(timeline.as_ref())),
        Outcome::Superseded => (pb::RestartOutcome::Superseded, None),
    };
    let scope = match entry.scope {
        Scope::Group => pb::RestartScope::Group,
        Scope::Worker => pb::RestartScope::Worker,
    };
    let since = |phase: Phase| pb::RestartPhase {
        name: phase.name.to_owned(),
        begin_ms: millis(entry.begun, phase.from),
        duration_ms: millis(phase.from, phase.to),
    };
    pb::Restart {
        generation: entry.generation.0,
        scope: scope.into(),
        cause: Some(super::cause(&entry.cause)),
        level: entry
            .level
            .map(|level| level.as_str().to_owned())
            .unwrap_or_default(),
        outcome: outcome.into(),
        begun_unix_nanos: entry.begun.0,
        ended_unix_nanos: timeline.map_or(0, |timeline| timeline.running_at.0),
        phases: timeline.into_iter().flat_map(phases).map(since).collect(),
        workers: timeline.map_or(0, |timeline| super::count(timeline.workers)),
        replaced_pods: timeline.map_or(0, |timeline| super::count(timeline.replaced)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact for a hundred days")]
fn millis(from: UnixNanos, to: UnixNanos) -> f64 {
    to.0.saturating_sub(from.0) as f64 / 1e6
}
