use serde_json::{Value, json};

use super::*;
use crate::view::testing::object;

fn jobset(spec: Value, status: Value) -> JobSet {
    object(
        json!({"metadata": {"name": "ring", "namespace": "team", "uid": "1"}, "spec": spec, "status": status}),
    )
}

fn in_place() -> Value {
    json!({"failurePolicy": {"restartStrategy": "InPlaceRestart"}, "replicatedJobs": []})
}

#[test]
fn named_workers_run_again_once_the_status_does_not_list_them() {
    let request: WorkerRestartRequest = "replicatedJob/ps t".parse().unwrap();
    let other = json!({"job": "ring-ps-eval-0", "index": 0, "container": "w", "generation": 2});
    let named = json!({"job": "ring-ps-1", "index": 0, "container": "w", "generation": 3});
    for (phase, handled, worker_restarts, expected) in [
        ("InSync", "replicatedJob/ps s", vec![], Progress::Requested),
        (
            "InSync",
            "replicatedJob/ps t",
            vec![&other, &named],
            Progress::UnderWay(ProgressDetail::uncounted("1 do not run again yet")),
        ),
        ("InSync", "replicatedJob/ps t", vec![&other], Progress::Done(3)),
        (
            "Stopping",
            "replicatedJob/ps t",
            vec![],
            Progress::UnderWay(ProgressDetail::uncounted("Stopping")),
        ),
        (
            "Failed",
            "",
            vec![],
            Progress::Ended("maxRestarts is used up".to_owned()),
        ),
    ] {
        let status = json!({"restarts": 0, "inPlaceRestart": {
            "phase": phase, "latest": 3, "workerRestarts": worker_restarts, "handledWorkerRestart": handled}});
        let mut asked = Request::of_workers(
            &jobset(
                in_place(),
                json!({"restarts": 0, "inPlaceRestart": {
            "handledWorkerRestart": "replicatedJob/ps s"}}),
            ),
            &request,
        );
        let seen = jobset(in_place(), status);
        assert_eq!(
            worker_restart_progress(&seen, &request.target, &mut asked),
            expected
        );
    }
}

/// A JobSet with this request in its annotation, and that one in its status.
fn asks(annotation: &str, asked: &str, handled: &str, phase: &str) -> JobSet {
    let field = match annotation {
        RESTART_REQUEST => "handledManualRequest",
        _ => "handledWorkerRestart",
    };
    let status = json!({"restarts": 0, "inPlaceRestart": {
        "phase": phase, "generation": 4, "released": 4, "latest": 4, field: handled}});
    let mut jobset = jobset(in_place(), status);
    jobset.metadata.annotations = Some([(annotation.to_owned(), asked.to_owned())].into());
    jobset
}

#[test]
fn a_later_request_that_is_handled_implies_the_earlier_one() {
    let worker_restarts: WorkerRestartRequest = "replicatedJob/ps mine".parse().unwrap();
    for (annotation, mine, later) in [
        (RESTART_REQUEST, "mine", "later"),
        (RESTART_WORKERS, "replicatedJob/ps mine", "job/ring-ev-0 later"),
    ] {
        let seen = |asked: &str, handled: &str, phase: &str, request: &mut Request| {
            let jobset = asks(annotation, asked, handled, phase);
            match annotation {
                RESTART_REQUEST => progress(&jobset, None, request),
                _ => worker_restart_progress(&jobset, &worker_restarts.target, request),
            }
        };
        let before = asks(annotation, "", "first", "InSync");
        let mut request = match annotation {
            RESTART_REQUEST => Request::of_all(&before, mine),
            _ => Request::of_workers(&before, &worker_restarts),
        };
        assert_eq!(seen(mine, "first", "InSync", &mut request), Progress::Requested);
        // A request that was made just before it is handled first.
        assert_eq!(seen(mine, "second", "InSync", &mut request), Progress::Requested);
        assert_eq!(seen(later, "second", "InSync", &mut request), Progress::Requested);
        let stopping = seen("latest", later, "Stopping", &mut request);
        assert_eq!(
            stopping,
            Progress::UnderWay(ProgressDetail::uncounted("Stopping"))
        );
        assert_eq!(seen("latest", later, "InSync", &mut request), Progress::Done(4));
    }
}

#[test]
fn another_jobset_of_the_same_name_ends_the_wait() {
    let before = asks(RESTART_REQUEST, "", "first", "InSync");
    let mut request = Request::of_all(&before, "mine");
    let mut another = asks(RESTART_REQUEST, "", "other", "InSync");
    another.metadata.uid = Some("2".into());
    assert_eq!(
        progress(&another, None, &mut request),
        Progress::Ended("JobSet team/ring was deleted and created again".into())
    );
}

#[test]
fn a_refusal_says_why() {
    for (spec, status, why) in [
        (
            in_place(),
            json!({"restarts": 0, "terminalState": "Completed"}),
            "has ended (Completed)",
        ),
        (
            json!({"replicatedJobs": []}),
            json!({"restarts": 0}),
            "does not restart in place",
        ),
        (
            json!({"suspend": true, "failurePolicy": {"restartStrategy": "InPlaceRestart"}, "replicatedJobs": []}),
            json!({"restarts": 0}),
            "is suspended",
        ),
    ] {
        let text = refusal(&jobset(spec, status)).unwrap();
        assert!(
            text.contains(why) && text.starts_with("JobSet team/ring "),
            "{text}"
        );
    }
    assert_eq!(refusal(&jobset(in_place(), json!({"restarts": 0}))), None);
}

#[test]
fn a_restart_is_done_when_all_workers_run() {
    let at = |request: &str, phase: &str, released: i64| {
        jobset(
            in_place(),
            json!({"restarts": 0, "inPlaceRestart": {
                "phase": phase, "generation": 4, "released": released, "handledManualRequest": request}}),
        )
    };
    let mut now = Request::of_all(&at("before", "InSync", 3), "now");
    let mut progress = |jobset: &JobSet, group: Option<&pb::Group>| progress(jobset, group, &mut now);
    assert_eq!(progress(&at("before", "InSync", 4), None), Progress::Requested);
    assert_eq!(
        progress(&at("now", "Stopping", 3), None),
        Progress::UnderWay(ProgressDetail::uncounted("Stopping"))
    );
    assert_eq!(progress(&at("now", "InSync", 4), None), Progress::Done(4));
    let group = |up| pb::Group {
        generation: 4,
        workers_up: up,
        workers_expected: 2,
        ..pb::Group::default()
    };
    assert_eq!(
        progress(&at("now", "InSync", 4), Some(&group(1))),
        Progress::UnderWay(ProgressDetail {
            words: "InSync, 1 of 2 workers up".into(),
            part: Some((1, 2)),
        })
    );
    assert_eq!(
        progress(&at("now", "InSync", 4), Some(&group(2))),
        Progress::Done(4)
    );
    assert!(matches!(
        progress(&at("now", "Failed", 3), None),
        Progress::Ended(_)
    ));
}
