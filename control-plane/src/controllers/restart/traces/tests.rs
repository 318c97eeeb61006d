use lockstep_core::restart::{Exit, Generation, Identity, Reason};
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use serde_json::json;

use super::*;
use crate::telemetry::traces::collector::{Collector, plain};

const FAILED: i64 = 1_700_000_000_123_456_789;

fn jobset() -> JobSet {
    serde_json::from_value(json!({
        "metadata": {"namespace": "team", "name": "ring", "uid": "u-1"},
        "spec": {"replicatedJobs": []},
        "status": {"inPlaceRestart": {"kind": "Supervised", "restarts": 2}},
    }))
    .unwrap()
}

fn cause() -> Cause {
    Cause {
        reason: Reason::WorkerExited,
        identity: Some(Identity {
            job: "ring-workers-0".into(),
            index: 1,
            container: "worker".into(),
        }),
        pod: "ring-workers-0-1-abcde".to_owned(),
        node: "node-7".to_owned(),
        exit: Some(Exit { code: 137, signal: 9 }),
        at: Some(UnixNanos(FAILED)),
        said: None,
    }
}

fn timeline() -> Timeline {
    let at = |nanos: i64| UnixNanos(FAILED + nanos);
    Timeline {
        generation: Generation(5),
        failed_at: at(0),
        detected_at: at(1_000_001),
        pushed_at: at(1_200_007),
        written_at: at(15_000_002),
        stopped_at: at(17_000_003),
        parked_at: at(18_000_004),
        released_at: at(18_000_005),
        running_at: at(28_000_006),
        workers: 4,
        replaced: 1,
        from_standbys: 3,
        ahead_ms: 1500,
    }
}

/// The spans that reach a collector, in the order of their ends, the root last.
async fn exported(announcement: Announcement) -> Vec<Span> {
    let mut collector = Collector::start().await;
    let traces = Traces::to(Some(&collector.endpoint)).unwrap();
    RestartTraces::new(traces.clone()).announced(&jobset(), &announcement);
    traces.end().await;
    let mut request = collector.next().await;
    assert!(collector.is_empty());
    let mut spans = request.resource_spans.remove(0);
    assert!(request.resource_spans.is_empty() && spans.scope_spans.len() == 1);
    spans.scope_spans.remove(0).spans
}

fn restart(timeline: Timeline, cause: Cause, level: RestartLevel) -> Announcement {
    Announcement::Restarted {
        scope: Scope::Group,
        timeline,
        cause,
        level,
    }
}

/// The name of a span, and its start and end in nanoseconds after the failure.
fn times(spans: &[Span]) -> Vec<(&str, i64, i64)> {
    let after = |nanos: u64| i64::try_from(nanos).unwrap() - FAILED;
    spans
        .iter()
        .map(|span| {
            (
                span.name.as_str(),
                after(span.start_time_unix_nano),
                after(span.end_time_unix_nano),
            )
        })
        .collect()
}

#[tokio::test]
async fn a_restart_is_one_trace_with_its_phases_to_the_nanosecond() {
    let spans = exported(restart(timeline(), cause(), RestartLevel::Process)).await;
    assert_eq!(
        times(&spans),
        [
            ("detect", 0, 1_000_001),
            ("push", 1_000_001, 1_200_007),
            ("write", 1_000_001, 15_000_002),
            ("stop", 1_000_001, 17_000_003),
            ("park", 17_000_003, 18_000_004),
            ("release", 18_000_004, 18_000_005),
            ("run", 18_000_005, 28_000_006),
            ("restart", 0, 28_000_006),
        ]
    );
    let (root, phases) = spans.split_last().unwrap();
    assert_eq!((root.trace_id.len(), root.span_id.len()), (16, 8));
    assert!(root.parent_span_id.is_empty(), "{root:?}");
    for phase in phases {
        assert_eq!(
            (&phase.trace_id, &phase.parent_span_id),
            (&root.trace_id, &root.span_id)
        );
        assert!(phase.span_id != root.span_id && phase.attributes.is_empty());
    }
    let expected = [
        ("k8s.container.name", "worker"),
        ("k8s.namespace.name", "team"),
        ("k8s.node.name", "node-7"),
        ("k8s.pod.name", "ring-workers-0-1-abcde"),
        ("lockstep.cause.exit_code", "137"),
        (
            "lockstep.cause.message",
            "worker ring-workers-0[1]/worker was killed by signal 9 (pod ring-workers-0-1-abcde, node node-7)",
        ),
        ("lockstep.cause.reason", "WorkerExited"),
        ("lockstep.cause.signal", "9"),
        ("lockstep.from_standbys", "3"),
        ("lockstep.generation", "5"),
        ("lockstep.group.kind", "Supervised"),
        ("lockstep.jobset.name", "ring"),
        ("lockstep.jobset.uid", "u-1"),
        ("lockstep.kind", "crash"),
        ("lockstep.level", "Process"),
        ("lockstep.replaced_pods", "1"),
        ("lockstep.restarts", "2"),
        ("lockstep.scope", "group"),
        ("lockstep.workers", "4"),
    ]
    .map(|(key, value)| (key, value.to_owned()));
    assert_eq!(plain(&root.attributes), expected);
}

#[tokio::test]
async fn what_is_not_known_is_left_out_and_no_span_ends_before_it_begins() {
    let timeline = Timeline {
        // The node's clock is ahead.
        detected_at: UnixNanos(FAILED - 5),
        pushed_at: UnixNanos::default(),
        written_at: UnixNanos::default(),
        stopped_at: UnixNanos::default(),
        ..timeline()
    };
    let cause = Cause {
        reason: Reason::ManualRequest,
        identity: None,
        pod: String::new(),
        node: String::new(),
        exit: None,
        at: None,
        said: None,
    };
    let spans = exported(restart(timeline, cause, RestartLevel::Recreate)).await;
    assert_eq!(
        times(&spans),
        [
            ("detect", 0, 0),
            ("release", 18_000_004, 18_000_005),
            ("run", 18_000_005, 28_000_006),
            ("restart", 0, 28_000_006),
        ]
    );
    let attributes = plain(&spans.last().unwrap().attributes);
    let of = |name| {
        let found = attributes.iter().find(|(key, _)| *key == name);
        found.map(|(_, value)| value.as_str())
    };
    assert_eq!(of("lockstep.kind"), Some("deliberate"));
    assert_eq!(of("lockstep.level"), Some("Recreate"));
    for unknown in [
        "k8s.pod.name",
        "k8s.container.name",
        "k8s.node.name",
        "lockstep.cause.exit_code",
        "lockstep.cause.signal",
    ] {
        assert_eq!(of(unknown), None, "{unknown}");
    }
}

#[tokio::test]
async fn a_restart_that_max_restarts_forbids_is_a_trace_with_an_error() {
    let before = SystemTime::now();
    let spans = exported(Announcement::Exhausted { cause: cause() }).await;
    let [root] = spans.as_slice() else {
        panic!("{spans:?}")
    };
    assert_eq!(root.name, "restart");
    let status = root.status.as_ref().unwrap();
    assert_eq!(
        (status.code(), status.message.as_str()),
        (StatusCode::Error, "maxRestarts is used up")
    );
    assert_eq!(root.start_time_unix_nano, FAILED.cast_unsigned());
    let before = before.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    assert!(u128::from(root.end_time_unix_nano) >= before.as_nanos());
}

#[tokio::test]
async fn what_only_begins_is_no_trace() {
    let mut collector = Collector::start().await;
    let traces = Traces::to(Some(&collector.endpoint)).unwrap();
    let restarts = RestartTraces::new(traces.clone());
    for announcement in [
        Announcement::Restarting {
            scope: Scope::Group,
            generation: Generation(1),
            cause: cause(),
        },
        Announcement::Recreating {
            generation: Generation(2),
            cause: cause(),
        },
        restart(timeline(), cause(), RestartLevel::Recreate),
    ] {
        restarts.announced(&jobset(), &announcement);
    }
    traces.end().await;
    let request = collector.next().await;
    let spans = &request.resource_spans[0].scope_spans[0].spans;
    assert_eq!(spans.iter().filter(|span| span.name == "restart").count(), 1);
    assert!(collector.is_empty());
}
