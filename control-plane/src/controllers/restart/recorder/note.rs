//! The text of a decision for the log and for an Event.

use std::time::Duration;

use lockstep_api::conditions::{self, events};
use lockstep_core::jobset::plan::Severity;
use lockstep_core::restart::{Announcement, Cause, Condemned, RestartLevel, Scope, Timeline};
use serde_json::json;

use crate::controllers::restart::blocked_condition;
use crate::controllers::restart::convert::sentence;
use crate::controllers::restart::pod_replacer::Replaced;

/// An Event before it is written.
pub(super) struct Note {
    pub(super) severity: Severity,
    pub(super) reason: &'static str,
    pub(super) text: String,
    /// The times of a restart's phases.
    pub(super) timeline: Option<serde_json::Value>,
}

impl Note {
    /// The note on an announcement. One that is only logged has none: it is logged here.
    pub(super) fn of(
        announcement: Announcement,
        why_without_agents: impl FnOnce(&str) -> Option<String>,
    ) -> Option<Self> {
        match announcement {
            Announcement::Restarting {
                scope,
                generation,
                cause,
            } => {
                tracing::info!(scope = scope.as_str(), %generation, cause = sentence(&cause), "restarting in place");
                None
            }
            Announcement::Restarted {
                scope,
                timeline,
                cause,
                level,
            } => {
                let how = match level {
                    RestartLevel::Recreate => events::RECREATED,
                    RestartLevel::Process | RestartLevel::Container | RestartLevel::Pod => {
                        events::RESTARTED_IN_PLACE
                    }
                };
                Some(Self {
                    severity: Severity::Normal,
                    reason: how,
                    text: restarted(scope, &timeline, &cause, level),
                    timeline: Some(to_json(scope, &timeline, &cause, level)),
                })
            }
            Announcement::Recreating { generation, cause } => {
                let note = format!(
                    "Recreating all Jobs for restart attempt {generation}: {}",
                    sentence(&cause)
                );
                Some(Self::warning(events::RECREATING_JOBS, note))
            }
            Announcement::Blocked(blocked) => {
                let message = blocked_condition::message(&blocked, why_without_agents);
                Some(Self::warning(conditions::RESTART_BLOCKED, message))
            }
            Announcement::Escalated { condemned, after } => {
                let why = after.map_or_else(
                    || {
                        "was restarted without its group and was not up within alpha.jobset.sigs.k8s.io/inplace-timeout"
                            .to_owned()
                    },
                    |after| {
                        let within = Duration::from_millis(after.within_ms);
                        format!("has failed {} times within {within:?}", after.failures)
                    },
                );
                Some(Self::warning(
                    events::WORKER_ESCALATED,
                    escalated(&condemned, &why),
                ))
            }
            Announcement::Climbed { condemned } => {
                let why = "failed again within 60 s of a restart in place";
                Some(Self::warning(
                    events::WORKER_ESCALATED,
                    escalated(&condemned, why),
                ))
            }
            // The condition Failed brings the event.
            Announcement::Exhausted { cause } => {
                tracing::warn!(cause = sentence(&cause), "maxRestarts is used up");
                None
            }
        }
    }

    /// The note on the replacement of a lost pod.
    pub(super) fn of_replacement(replaced: &Replaced) -> Self {
        match replaced {
            Replaced::Created(pod) => {
                let (job, index) = (&pod.place.job, pod.place.index);
                let note = format!("Created pod {} for {job}[{index}], whose pod is gone", pod.name);
                Self {
                    severity: Severity::Normal,
                    reason: events::REPLACED_POD,
                    text: note,
                    timeline: None,
                }
            }
            Replaced::Failed(pod, error) => {
                let (job, index) = (&pod.place.job, pod.place.index);
                let note = format!(
                    "Cannot create a pod for {job}[{index}], whose pod is gone. The Job controller may create it later: {error}"
                );
                Self::warning(events::POD_NOT_REPLACED, note)
            }
        }
    }

    fn warning(reason: &'static str, text: String) -> Self {
        Self {
            severity: Severity::Warning,
            reason,
            text,
            timeline: None,
        }
    }
}

/// The text for a worker whose pod is deleted.
fn escalated(condemned: &Condemned, why: &str) -> String {
    format!(
        "Worker {} {why} on node {}: deleting its pod {}, so that the scheduler can place a new one",
        condemned.identity, condemned.node, condemned.pod
    )
}

fn restarted(scope: Scope, timeline: &Timeline, cause: &Cause, level: RestartLevel) -> String {
    let how = match level {
        RestartLevel::Process | RestartLevel::Pod => "in place",
        RestartLevel::Container => "in place (by container)",
        RestartLevel::Recreate => "by recreation",
    };
    let mut which = Vec::new();
    if timeline.replaced > 0 {
        which.push(format!("{} in a new pod", timeline.replaced));
    }
    if timeline.from_standbys > 0 {
        let plural = if timeline.from_standbys == 1 {
            "a standby"
        } else {
            "standbys"
        };
        which.push(format!("{} from {plural}", timeline.from_standbys));
    }
    let which = if which.is_empty() {
        String::new()
    } else {
        format!(" ({})", which.join(", "))
    };
    let workers = match scope {
        Scope::Group => format!("{} workers", timeline.workers),
        Scope::Worker => "one worker".to_owned(),
    };
    format!(
        "Restarted {workers}{which} {how} to attempt {} in {:.1} ms: {}",
        timeline.generation,
        millis(timeline.running_at.0.saturating_sub(timeline.failed_at.0)),
        sentence(cause)
    )
}

#[expect(clippy::cast_precision_loss, reason = "shown to people with one decimal")]
fn millis(nanos: i64) -> f64 {
    nanos as f64 / 1e6
}

fn to_json(scope: Scope, timeline: &Timeline, cause: &Cause, level: RestartLevel) -> serde_json::Value {
    json!({
        "scope": scope.as_str(),
        "level": level.as_str(),
        "generation": timeline.generation.0,
        "causePod": cause.pod,
        "failedAt": timeline.failed_at.0,
        "detectedAt": timeline.detected_at.0,
        "stopPushedAt": timeline.pushed_at.0,
        "writtenAt": timeline.written_at.0,
        "stoppedAt": timeline.stopped_at.0,
        "parkedAt": timeline.parked_at.0,
        "releasedAt": timeline.released_at.0,
        "runningAt": timeline.running_at.0,
        "workers": timeline.workers,
        "replacedPods": timeline.replaced,
        "fromStandbys": timeline.from_standbys,
        "aheadMs": timeline.ahead_ms,
    })
}
