use serde_json::{Value, json};

use super::*;
use crate::view::testing::{before, object};

fn jobset(status: Value) -> JobSet {
    object(json!({
        "metadata": {"name": "ring", "namespace": "team", "uid": "1"},
        "spec": {"failurePolicy": {"maxRestarts": 10}, "replicatedJobs": []},
        "status": {"restarts": 0, "inPlaceRestart": status},
    }))
}

fn event(uid: &str, reason: &str, note: &str, timeline: Option<Value>) -> Event {
    let annotations = timeline.map(|timeline| json!({TIMELINE: timeline.to_string()}));
    object(json!({
        "metadata": {"annotations": annotations},
        "eventTime": "2026-03-01T02:59:00.000000Z",
        "reason": reason,
        "note": note,
        "regarding": {"kind": "JobSet", "name": "ring", "namespace": "team", "uid": uid},
    }))
}

fn timeline(generation: u64, failed: Timestamp) -> Value {
    let failed = i64::try_from(failed.as_nanosecond()).unwrap();
    json!({
        "scope": "group", "level": "Process", "generation": generation,
        "failedAt": failed, "detectedAt": failed + 1_200_000, "stopPushedAt": failed + 1_300_000,
        "writtenAt": 0, "stoppedAt": failed + 9_000_000, "parkedAt": failed + 9_500_000,
        "releasedAt": failed + 12_000_000, "runningAt": failed + 31_240_000,
        "workers": 4, "replacedPods": 0, "fromStandbys": 3, "aheadMs": 1200, "somethingNew": true,
    })
}

#[test]
fn restarts_are_in_the_order_of_their_failures() {
    let note = "Restarted 4 workers in place to attempt 2 in 31.2 ms: worker a[1]/worker exited with code 3";
    let events = [
        event("1", "RestartedInPlace", note, Some(timeline(2, before(60)))),
        event(
            "1",
            "RestartedInPlace",
            "to attempt 1 in 9.9 ms: a restart was requested",
            Some(timeline(1, before(300))),
        ),
        event(
            "of another",
            "RestartedInPlace",
            note,
            Some(timeline(9, before(600))),
        ),
        event("1", "SuspendedJobs", "not a restart", None),
    ];
    let found = history(&jobset(json!({"generation": 2, "restarts": 1})), &events);
    let seen: Vec<_> = found
        .entries
        .iter()
        .map(|entry| (entry.generation, entry.cause.as_str()))
        .collect();
    assert_eq!(
        seen,
        [
            (Some(1), "a restart was requested"),
            (Some(2), "worker a[1]/worker exited with code 3")
        ]
    );
    let last = last_completed(&found.entries).unwrap();
    assert_eq!(
        (last.at, last.took_ms, last.workers),
        (Some(before(60)), Some(31.2), Some(4))
    );
    assert_eq!((last.from_standbys, last.ahead_ms), (Some(3), Some(1200)));
    let phases = last.phases.clone().unwrap();
    assert_eq!(
        (phases.detected, phases.written, phases.stopped),
        (Some(1.2), None, Some(9.0))
    );
    assert_eq!((found.restarts, found.max_restarts, found.generation), (1, 10, 2));
}

#[test]
fn the_status_has_the_last_restart_if_its_event_is_gone() {
    let status =
        json!({"generation": 7, "level": "Recreate", "cause": {"reason": "TimedOut", "message": "too late"}});
    let found = history(&jobset(status.clone()), &[]);
    let [entry] = found.entries.as_slice() else {
        panic!("{found:?}")
    };
    assert_eq!(
        (entry.generation, entry.level.as_deref(), entry.took_ms),
        (Some(7), Some("Recreate"), None)
    );
    assert_eq!((entry.at, entry.cause.as_str()), (None, "too late"));

    let known = event(
        "1",
        "Recreated",
        "in 1.0 ms: too late",
        Some(timeline(7, before(9))),
    );
    assert_eq!(history(&jobset(status), &[known]).entries.len(), 1);
    assert_eq!(history(&jobset(json!({})), &[]).entries, []);
}

#[test]
fn a_suspension_is_not_shown_as_a_restart() {
    let note = "Restarted 4 workers in place to attempt 1 in 31.2 ms: a restart was requested";
    let restarted = event("1", "RestartedInPlace", note, Some(timeline(1, before(300))));
    let suspended = event("1", "SuspendedJobs", "jobset is suspended", None);
    let status = |phase: &str| json!({"generation": 2, "phase": phase, "cause": {"message": "a restart was requested"}});

    let resumed = jobset(status("InSync"));
    let events = [restarted.clone(), suspended.clone()];
    assert_eq!(history(&resumed, &events).entries.len(), 1);
    let last = last_restart_entry(&resumed, &events).unwrap();
    assert_eq!((last.at, last.took_ms), (Some(before(300)), Some(31.2)));

    // Another restart: the JobSet was not suspended since, or this one is under way, or has another
    // cause.
    let mut other = resumed.clone();
    other.status = jobset(json!({"generation": 2, "phase": "InSync", "cause": {"message": "other"}})).status;
    for (jobset, events) in [
        (resumed, vec![restarted.clone()]),
        (jobset(status("Stopping")), events.to_vec()),
        (other, events.to_vec()),
    ] {
        assert_eq!(history(&jobset, &events).entries.len(), 2, "{jobset:?}");
        assert_eq!(last_restart_entry(&jobset, &events), None, "{jobset:?}");
    }
}

#[test]
fn the_author_of_an_event_is_shown() {
    let by = |reporter: &str, component: &str| {
        let mut event = event("1", "RestartBlocked", "so it says", None);
        event.reporting_controller = Some(reporter.to_owned());
        event.deprecated_source = object(json!({"component": component}));
        event
    };
    let cause = json!({"generation": 7, "cause": {"message": "too late"}});
    let entries = |event: Event| history(&jobset(cause.clone()), &[event]).entries;
    for (reporter, component, marked) in [
        ("lockstep.dev/control-plane", "", None),
        ("jobset", "", None),
        ("", "jobset", None),
        ("mallory", "jobset", Some("mallory")),
        ("", "mallory", Some("mallory")),
        ("", "", Some("unknown")),
    ] {
        let entries = entries(by(reporter, component));
        let seen: Vec<_> = entries
            .iter()
            .map(|entry| (entry.source, entry.reporter.as_deref()))
            .collect();
        assert_eq!(seen, [("event", marked), ("status", None)]);
    }
}
