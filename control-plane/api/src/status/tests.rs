use serde_json::json;

use super::*;

#[test]
fn in_place_restart_survives_reading_and_writing() {
    let object = json!({
        "restarts": 1,
        "restartsCountTowardsMax": 1,
        "inPlaceRestart": {
            "kind": "Supervised",
            "phase": "Stopping",
            "generation": 7,
            "released": 6,
            "restarts": 3,
            "epoch": 4711,
            "started": ["driver", "workers"],
            "level": "Process",
            "cause": {
                "reason": "WorkerExited",
                "pod": "train-workers-0-1-x7x7x",
                "container": "worker",
                "node": "node-1",
                "exitCode": 137,
                "signal": 9,
                "message": "worker ended",
            },
            "handledManualRequest": "2026-01-02",
            "handledWorkerRestart": "job/js-ps-0 2026-01-02",
            "lastTransitionTime": "2026-01-02T03:04:05Z",
        },
    });
    let status: JobSetStatus = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(
        status.in_place_restart.as_ref().unwrap().kind,
        Some(InPlaceKind::Supervised)
    );
    assert_eq!(serde_json::to_value(&status).unwrap(), object);
}

#[test]
fn absent_numbers_are_zero_and_zero_is_absent() {
    let status: InPlaceRestartStatus = serde_json::from_value(json!({})).unwrap();
    assert_eq!(status, InPlaceRestartStatus::default());
    assert_eq!(serde_json::to_value(&status).unwrap(), json!({}));
    // Upstream's controller always writes this one.
    assert_eq!(
        serde_json::to_value(JobSetStatus::default()).unwrap(),
        json!({ "restarts": 0 })
    );
}

#[test]
fn an_exit_code_of_zero_is_written() {
    let cause = RestartCause {
        exit_code: Some(0),
        ..RestartCause::default()
    };
    assert_eq!(serde_json::to_value(cause).unwrap(), json!({ "exitCode": 0 }));
}

#[test]
fn parts_are_found_by_name() {
    let status: JobSetStatus = serde_json::from_value(json!({
        "conditions": [
            { "type": "Completed", "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z" },
            { "type": "Suspended", "status": "False", "reason": "R", "message": "", "lastTransitionTime": "2026-01-02T03:04:05Z" },
        ],
        "terminalState": "Completed",
        "replicatedJobsStatus": [
            { "name": "workers", "ready": 1, "succeeded": 2, "failed": 3, "active": 4, "suspended": 5 },
        ],
    }))
    .unwrap();
    assert!(status.is_true("Completed") && !status.is_true("Suspended") && !status.is_true("Failed"));
    assert_eq!(status.terminal_state, Some(TerminalState::Completed));
    assert_eq!(status.replicated_job("workers").unwrap().failed, 3);
    assert_eq!(status.replicated_job("driver"), None);
}
