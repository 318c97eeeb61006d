use serde_json::{Value, json};

use super::*;
use crate::view::testing::{before, object};

fn jobset(status: Value) -> JobSet {
    object(json!({
        "metadata": {"name": "ring", "namespace": "team", "uid": "1"},
        "spec": {
            "failurePolicy": {"maxRestarts": 10, "restartStrategy": "InPlaceRestart"},
            "replicatedJobs": [{"name": "a", "replicas": 1, "template": {"spec": {"template": {"spec": {"containers": []}}}}}],
        },
        "status": status,
    }))
}

fn job() -> Job {
    object(json!({
        "metadata": {"name": "ring-a-0", "namespace": "team", "labels": {
            "jobset.sigs.k8s.io/replicatedjob-name": "a", "jobset.sigs.k8s.io/job-index": "0"}},
        "spec": {"parallelism": 3, "completions": 3, "template": {}},
    }))
}

fn pod(index: u32, name: &str, status: Value) -> Pod {
    object(json!({
        "metadata": {"name": name, "namespace": "team", "labels": {
            "batch.kubernetes.io/job-name": "ring-a-0",
            "batch.kubernetes.io/job-completion-index": index.to_string()}},
        "spec": {"nodeName": "node-1", "containers": []},
        "status": status,
    }))
}

fn ready(count: i32) -> Value {
    json!([{"name": "a", "ready": count, "succeeded": 0, "failed": 0, "active": 1, "suspended": 0}])
}

#[test]
fn pods_stand_in_for_workers_that_do_not_report() {
    let seen = Observed {
        jobset: jobset(json!({"restarts": 0, "replicatedJobsStatus": ready(0)})),
        jobs: vec![job()],
        pods: vec![
            pod(0, "old", json!({"phase": "Failed"})),
            pod(0, "new", json!({"phase": "Running"})),
            pod(1, "waits", json!({"phase": "Pending"})),
        ],
        ..Observed::default()
    };
    let view = view(&seen);
    assert_eq!((view.phase.as_str(), view.kind.as_str()), ("Starting", "InPlace"));
    let job = &view.replicated_jobs[0].jobs[0];
    let states: Vec<_> = job
        .workers
        .iter()
        .map(|worker| (worker.state.as_str(), worker.pod.as_deref()))
        .collect();
    assert_eq!(
        states,
        [
            ("Running", Some("new")),
            ("Pending", Some("waits")),
            ("NoPod", None)
        ]
    );
    assert_eq!((job.workers_up, job.workers_expected), (1, 3));
    assert_eq!(view.last_restart, None);
}

#[test]
fn the_platform_api_knows_workers_better_than_their_pods() {
    let worker = |index, phase: pb::WorkerPhase, generation| pb::Worker {
        identity: Some(pb::WorkerIdentity {
            job: "ring-a-0".into(),
            completion_index: index,
            container: "worker".into(),
        }),
        phase: phase.into(),
        generation,
        since_unix_nanos: i64::try_from(before(5).as_nanosecond()).unwrap(),
        ..pb::Worker::default()
    };
    let seen = Observed {
        jobset: jobset(
            json!({"restarts": 0, "replicatedJobsStatus": ready(1), "inPlaceRestart": {
            "kind": "Supervised", "phase": "InSync", "generation": 3, "released": 3, "restarts": 2, "level": "Process",
            "cause": {"reason": "WorkerExited", "message": "worker ring-a-0[1]/worker exited with code 3", "exitCode": 3}}}),
        ),
        jobs: vec![job()],
        pods: vec![
            pod(0, "p0", json!({"phase": "Running"})),
            pod(1, "p1", json!({"phase": "Running"})),
            pod(
                2,
                "p2",
                json!({"phase": "Pending", "conditions": [
                {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]}),
            ),
        ],
        group: Some(pb::Group {
            phase: pb::GroupPhase::Stopping.into(),
            generation: 4,
            released: 3,
            restarts: 2,
            workers: vec![
                pb::Worker {
                    starts: Some(pb::Starts {
                        standby: 1,
                        cold: 2,
                        ahead_ms: 3,
                    }),
                    standbys: Some(pb::Standbys {
                        wanted: 3,
                        ..pb::Standbys::default()
                    }),
                    ..worker(0, pb::WorkerPhase::Parked, 4)
                },
                worker(1, pb::WorkerPhase::Exited, 3),
                worker(2, pb::WorkerPhase::Pending, 0),
            ],
            ..pb::Group::default()
        }),
        ..Observed::default()
    };
    let view = view(&seen);
    assert_eq!(
        (view.phase.as_str(), view.generation, view.released),
        ("Stopping", 4, 3)
    );
    let workers = &view.replicated_jobs[0].jobs[0].workers;
    let states: Vec<_> = workers
        .iter()
        .map(|worker| (worker.state.as_str(), worker.source, worker.generation))
        .collect();
    assert_eq!(
        states,
        [
            ("Parked", "agent", Some(4)),
            ("Exited", "agent", Some(3)),
            ("Unschedulable", "pod", None)
        ]
    );
    let json = serde_json::to_value(&workers[0]).unwrap();
    assert_eq!(json["starts"], json!({"standby": 1, "cold": 2, "aheadMs": 3}));
    assert_eq!(
        json["standbys"],
        json!({"wanted": 3, "ready": 0, "memoryKib": 0, "modules": 0, "reason": null})
    );
    assert_eq!(workers[1].standbys, None);
    let last = view.last_restart.unwrap();
    assert_eq!(
        (last.exit_code, last.level.as_deref(), last.took_ms),
        (Some(3), Some("Process"), None)
    );
}

#[test]
fn a_group_starts_until_its_jobs_exist_and_its_workers_run() {
    let phase_with = |ready_jobs: i32, up: u32, expected: u32| {
        let group = pb::Group {
            phase: pb::GroupPhase::InSync.into(),
            workers_up: up,
            workers_expected: expected,
            ..pb::Group::default()
        };
        let jobset = jobset(json!({"restarts": 0, "replicatedJobsStatus": ready(ready_jobs)}));
        let status = jobset.status.clone().unwrap();
        phase(&jobset, &status, Some(&group))
    };
    // No Job could be created.
    assert_eq!(phase_with(0, 0, 0), "Starting");
    assert_eq!(phase_with(0, 2, 3), "Starting");
    // They run, though a probe may not have passed yet.
    assert_eq!(phase_with(0, 3, 3), "InSync");
    // All have completed.
    assert_eq!(phase_with(1, 0, 0), "InSync");
}

#[test]
fn an_end_takes_precedence_over_every_phase() {
    let ended = json!({"restarts": 1, "terminalState": "Failed", "inPlaceRestart": {"phase": "InSync"},
        "conditions": [{"type": "Failed", "status": "True", "reason": "ReachedMaxRestarts",
            "message": "no more restarts", "lastTransitionTime": "2026-03-01T02:00:00Z"}]});
    let seen = Observed {
        jobset: jobset(ended),
        ..Observed::default()
    };
    let view = view(&seen);
    assert_eq!(view.phase, "Failed");
    assert_eq!(view.messages, ["Failed: no more restarts"]);
}

#[test]
fn a_waiting_gang_says_what_it_waits_for() {
    let gang = |name: &str, attempt: i32, phase: &str, message: Option<&str>| {
        let mut gang = json!({"name": name, "restartAttempt": attempt, "phase": phase, "minAvailable": 5});
        if let (Some(message), Some(gang)) = (message, gang.as_object_mut()) {
            gang.insert("message".into(), json!(message));
        }
        gang
    };
    let short = "needs 5 pods x 4 cpu, 3 fit: 2 short of cpu";
    let waits = json!({"restarts": 1, "replicatedJobsStatus": ready(0), "gangs": [
        gang("a", 1, "Waiting", Some(short)),
        gang("b", 1, "Scheduled", None),
        gang("c", 1, "Waiting", None),
        // Of the run before its Jobs were recreated.
        gang("d", 0, "BackingOff", Some("was not bound in time")),
    ]});
    let seen = Observed {
        jobset: jobset(waits),
        ..Observed::default()
    };
    let view = view(&seen);
    assert_eq!(view.phase, "Starting");
    assert_eq!(
        view.messages,
        [format!("gang a: Waiting: {short}"), "gang c: Waiting".to_owned()]
    );
    // The form for programs has all of it.
    let json = serde_json::to_value(&view).unwrap();
    assert_eq!(json["gangs"].as_array().map(Vec::len), Some(3));
    assert_eq!(json["gangs"][0]["phase"], "Waiting");
    assert_eq!(json["gangs"][0]["message"], short);
    assert_eq!(json["gangs"][0]["minAvailable"], 5);
}
