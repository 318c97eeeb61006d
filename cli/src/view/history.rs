//! The restarts of a JobSet, from its events and its status.
//!
//! The status has only the last restart, without its duration. Events have every restart with its
//! duration, until the API server deletes them.

use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use lockstep_api::conditions::events;
use lockstep_api::events::TIMELINE;
use lockstep_api::{InPlacePhase, InPlaceRestartStatus, JobSet};
use serde::{Deserialize, Serialize};

use super::time;

#[cfg(test)]
mod tests;

/// Values of [`Entry::source`].
pub(crate) const EVENT: &str = "event";
const STATUS: &str = "status";
/// `reportingController` of the control plane's events about JobSets.
const REPORTERS: [&str; 2] = [events::RESTART_CONTROLLER, events::JOBSET_CONTROLLER];

/// The restarts of a JobSet.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct History {
    /// Namespace of the JobSet.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// Restarts that count towards `maxRestarts`, and that limit.
    pub(crate) restarts: i32,
    pub(crate) max_restarts: i32,
    /// The restart attempt that its workers should run.
    pub(crate) generation: i64,
    /// The restarts and related events, the oldest first.
    pub(crate) entries: Vec<Entry>,
}

/// A restart, or a related event.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Entry {
    /// When it happened: for a restart, when the worker failed. None if only the status has it.
    pub(crate) at: Option<Timestamp>,
    /// The event's reason, such as RestartedInPlace; `Restarted` or `Restarting` if only the status
    /// has it.
    pub(crate) what: String,
    /// The restart attempt that it led to.
    pub(crate) generation: Option<u64>,
    /// The restart level: Process, Container, Pod or Recreate.
    pub(crate) level: Option<String>,
    /// Milliseconds from the failure until all workers ran.
    pub(crate) took_ms: Option<f64>,
    /// The number of restarted workers, and how many of them are in a new pod.
    pub(crate) workers: Option<u32>,
    pub(crate) replaced_pods: Option<u32>,
    /// How many of them began from a standby, and the most CPU time in ms of imports that one had
    /// done before.
    pub(crate) from_standbys: Option<u32>,
    pub(crate) ahead_ms: Option<u32>,
    /// Why, in a sentence.
    pub(crate) cause: String,
    /// When each phase was reached, in milliseconds after the failure.
    pub(crate) phases: Option<Phases>,
    /// Where it comes from: `event`, which anyone who may create events can write, or `status`,
    /// which the control plane writes.
    pub(crate) source: &'static str,
    /// The author that an event names, if that is not the control plane. The name is not verified.
    pub(crate) reporter: Option<String>,
}

/// When each phase ended, in ms after the failure. None for a phase that was skipped.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Phases {
    pub(crate) detected: Option<f64>,
    pub(crate) pushed: Option<f64>,
    pub(crate) written: Option<f64>,
    pub(crate) stopped: Option<f64>,
    pub(crate) parked: Option<f64>,
    pub(crate) released: Option<f64>,
    pub(crate) running: Option<f64>,
}

/// The annotation of an event. Unknown fields of later versions are ignored.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct TimelineAnnotation {
    level: Option<String>,
    generation: Option<u64>,
    failed_at: i64,
    detected_at: i64,
    stop_pushed_at: i64,
    written_at: i64,
    stopped_at: i64,
    parked_at: i64,
    released_at: i64,
    running_at: i64,
    workers: Option<u32>,
    replaced_pods: Option<u32>,
    from_standbys: Option<u32>,
    ahead_ms: Option<u32>,
}

impl TimelineAnnotation {
    /// Milliseconds from the failure until then, not below 0: clocks of two machines may differ.
    fn after(&self, nanos: i64) -> Option<f64> {
        let known = self.failed_at != 0 && nanos != 0;
        known.then(|| millis(nanos.saturating_sub(self.failed_at).max(0)))
    }

    fn phases(&self) -> Phases {
        Phases {
            detected: self.after(self.detected_at),
            pushed: self.after(self.stop_pushed_at),
            written: self.after(self.written_at),
            stopped: self.after(self.stopped_at),
            parked: self.after(self.parked_at),
            released: self.after(self.released_at),
            running: self.after(self.running_at),
        }
    }
}

/// Nanoseconds as milliseconds with one decimal.
#[expect(clippy::cast_precision_loss, reason = "shown to people with one decimal")]
fn millis(nanos: i64) -> f64 {
    ((nanos / 10_000) as f64 / 10.0).round() / 10.0
}

/// The history from the JobSet's status and events. Events of an earlier JobSet with the same name
/// are ignored.
pub(crate) fn history(jobset: &JobSet, events: &[Event]) -> History {
    let status = jobset.status.as_ref();
    let in_place = status.and_then(|status| status.in_place_restart.as_ref());
    let mut entries: Vec<Entry> = events
        .iter()
        .filter(|event| is_about(event, jobset))
        .filter_map(entry)
        .collect();
    entries.sort_by_key(|entry| (entry.at, entry.generation));
    let suspended = suspended(jobset, events);
    if let Some(last) = in_place.and_then(|status| unreported(status, &entries, suspended)) {
        entries.push(last);
    }
    History {
        namespace: jobset.ns().to_owned(),
        name: jobset.name().to_owned(),
        restarts: in_place.map_or_else(|| jobset.restart_attempt(), |status| status.restarts),
        max_restarts: jobset.max_restarts(),
        generation: in_place.map_or(0, |status| status.generation),
        entries,
    }
}

/// The event of the last restart in the status, once that restart is done.
pub(crate) fn last_restart_entry(jobset: &JobSet, events: &[Event]) -> Option<Entry> {
    let status = jobset.status.as_ref()?.in_place_restart.as_ref()?;
    let history = history(jobset, events);
    last_completed(&history.entries)
        .filter(|entry| is_last(entry, status, suspended(jobset, events)))
        .cloned()
}

/// The last completed restart of these entries.
pub(crate) fn last_completed(entries: &[Entry]) -> Option<&Entry> {
    entries.iter().rev().find(|entry| entry.took_ms.is_some())
}

fn is_about(event: &Event, jobset: &JobSet) -> bool {
    event.regarding.as_ref().is_some_and(|object| {
        object.kind.as_deref() == Some("JobSet")
            && object.name.as_deref() == Some(jobset.name())
            && object.uid.as_deref().is_none_or(|uid| uid == jobset.uid_str())
    })
}

/// The time at which an event was written.
fn when(event: &Event) -> Option<Timestamp> {
    let written = event.event_time.as_ref().map(|time| time.0);
    written.or_else(|| event.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

/// The entry for an event, if it is about a restart or a worker that fails.
fn entry(event: &Event) -> Option<Entry> {
    let what = event.reason.clone()?;
    if !events::OF_RESTARTS.contains(&what.as_str()) {
        return None;
    }
    let note = event.note.clone().unwrap_or_default();
    let annotations = event.metadata.annotations.as_ref();
    let timeline: Option<TimelineAnnotation> = annotations
        .and_then(|annotations| annotations.get(TIMELINE))
        .and_then(|text| serde_json::from_str(text).ok());
    let Some(timeline) = timeline else {
        return Some(Entry {
            at: when(event),
            what,
            generation: None,
            level: None,
            took_ms: None,
            workers: None,
            replaced_pods: None,
            from_standbys: None,
            ahead_ms: None,
            cause: note,
            phases: None,
            source: EVENT,
            reporter: foreign_reporter(event),
        });
    };
    let phases = timeline.phases();
    Some(Entry {
        at: time::from_nanos(timeline.failed_at).or_else(|| when(event)),
        what,
        generation: timeline.generation,
        took_ms: phases.running,
        workers: timeline.workers,
        replaced_pods: timeline.replaced_pods,
        from_standbys: timeline.from_standbys,
        ahead_ms: timeline.ahead_ms,
        cause: cause(&note).to_owned(),
        phases: Some(phases),
        level: timeline.level,
        source: EVENT,
        reporter: foreign_reporter(event),
    })
}

/// The author that an event names, if that is not the control plane.
fn foreign_reporter(event: &Event) -> Option<String> {
    let source = event.deprecated_source.as_ref();
    let named = [
        event.reporting_controller.as_deref(),
        source.and_then(|source| source.component.as_deref()),
    ];
    let named = named.into_iter().flatten().find(|name| !name.is_empty());
    let named = named.unwrap_or("unknown");
    (!REPORTERS.contains(&named)).then(|| named.to_owned())
}

/// The cause in the note of a completed restart, which is `Restarted … in 31.2 ms: cause`.
fn cause(note: &str) -> &str {
    note.split_once(" ms: ").map_or(note, |(_, cause)| cause)
}

/// When the JobSet was last suspended, according to events.
fn suspended(jobset: &JobSet, events: &[Event]) -> Option<Timestamp> {
    events
        .iter()
        .filter(|event| event.reason.as_deref() == Some("SuspendedJobs") && is_about(event, jobset))
        .filter_map(when)
        .max()
}

/// True if this entry is the last restart in the status. A suspension takes a generation, too, and
/// keeps the cause, so a later generation need not be another restart.
fn is_last(entry: &Entry, status: &InPlaceRestartStatus, suspended: Option<Timestamp>) -> bool {
    let Some(generation) = entry.generation else {
        return false;
    };
    let since = suspended.is_some_and(|suspended| entry.at.is_some_and(|at| at < suspended));
    i64::try_from(generation).is_ok_and(|generation| generation >= latest(status))
        || since && is_over(status) && entry.cause == why(status)
}

/// The highest restart attempt in the status.
fn latest(status: &InPlaceRestartStatus) -> i64 {
    status.generation.max(status.latest)
}

fn is_over(status: &InPlaceRestartStatus) -> bool {
    matches!(status.phase, None | Some(InPlacePhase::InSync))
}

/// The cause of the last restart, in a sentence.
fn why(status: &InPlaceRestartStatus) -> String {
    let Some(cause) = &status.cause else {
        return String::new();
    };
    let sentence = cause.message.clone().or_else(|| cause.reason.clone());
    sentence.unwrap_or_default()
}

/// The restart in the status, if no event reports it.
fn unreported(
    status: &InPlaceRestartStatus,
    entries: &[Entry],
    suspended: Option<Timestamp>,
) -> Option<Entry> {
    status.cause.as_ref()?;
    let generation = u64::try_from(latest(status)).ok()?;
    let reported = entries.iter().any(|entry| is_last(entry, status, suspended));
    (generation > 0 && !reported).then(|| Entry {
        at: None,
        what: if is_over(status) {
            "Restarted"
        } else {
            "Restarting"
        }
        .to_owned(),
        generation: Some(generation),
        level: status.level.as_ref().map(ToString::to_string),
        took_ms: None,
        workers: None,
        replaced_pods: None,
        from_standbys: None,
        ahead_ms: None,
        cause: why(status),
        phases: None,
        source: STATUS,
        reporter: None,
    })
}
