//! The last restarts of a group, with their phases.

use lockstep_proto::platform::v1 as pb;
use serde::Serialize;

use super::{Cause, cause, convert, millis};
use crate::controllers::restart::board::history::History;

/// The last restarts, the newest first.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Restarts {
    last: Vec<Restart>,
    /// When their record began, milliseconds since the Unix epoch.
    since: i64,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Restart {
    generation: u64,
    scope: &'static str,
    outcome: &'static str,
    level: String,
    cause: Option<Cause>,
    /// Milliseconds since the Unix epoch.
    begun: i64,
    /// Milliseconds, once it is done.
    took: Option<f64>,
    workers: u32,
    replaced_pods: u32,
    from_standbys: u32,
    phases: Vec<Phase>,
}

/// Milliseconds after the failure.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Phase {
    name: String,
    from: f64,
    took: f64,
}

impl Restarts {
    pub(super) fn new(history: &History) -> Self {
        Self {
            last: history.entries().map(convert::restart).map(restart).collect(),
            since: millis(history.since.0),
        }
    }
}

fn restart(restart: pb::Restart) -> Restart {
    Restart {
        scope: match restart.scope() {
            pb::RestartScope::Worker => "worker",
            pb::RestartScope::Group | pb::RestartScope::Unspecified => "group",
        },
        outcome: match restart.outcome() {
            pb::RestartOutcome::Done => "Done",
            pb::RestartOutcome::Superseded => "Superseded",
            pb::RestartOutcome::UnderWay | pb::RestartOutcome::Unspecified => "UnderWay",
        },
        generation: restart.generation,
        took: (restart.ended_unix_nanos != 0)
            .then(|| between(restart.begun_unix_nanos, restart.ended_unix_nanos)),
        level: restart.level,
        cause: restart.cause.map(cause),
        begun: millis(restart.begun_unix_nanos),
        workers: restart.workers,
        replaced_pods: restart.replaced_pods,
        from_standbys: restart.from_standbys,
        phases: restart.phases.into_iter().map(phase).collect(),
    }
}

fn phase(phase: pb::RestartPhase) -> Phase {
    Phase {
        name: phase.name,
        from: phase.begin_ms,
        took: phase.duration_ms,
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact for a hundred days")]
fn between(from: i64, to: i64) -> f64 {
    to.saturating_sub(from).max(0) as f64 / 1e6
}
