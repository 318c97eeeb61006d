//! What callers can look up about a group besides its workers: its stages and its last restarts.

use lockstep_core::restart::{Announcement, RestartLevel, Scope, Timeline};

use super::*;

async fn restarts(api: &Api, token: &str, name: &str) -> Result<pb::ListRestartsResponse, Status> {
    let list = pb::ListRestartsRequest {
        namespace: "ours".into(),
        name: name.into(),
    };
    let answer = api.client().list_restarts(with(token, list)).await?;
    Ok(answer.into_inner())
}

fn cause() -> Cause {
    Cause {
        reason: Reason::WorkerExited,
        identity: Some(identity(1)),
        pod: "pod-1".into(),
        node: "n2".into(),
        exit: Some(Exit { code: 3, signal: 0 }),
        at: Some(UnixNanos(1_000_000)),
        said: None,
    }
}

#[tokio::test]
async fn the_last_restarts_are_listed_with_their_phases() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(7));
    post.replace_state(running("ours", "js", 0));
    let told = restarts(&api, "list:ours", "js").await.unwrap();
    assert_eq!(
        (told.uid.as_str(), told.since_unix_nanos, told.restarts.len()),
        ("uid-js", 7, 0)
    );
    post.record(
        &Announcement::Restarting {
            scope: Scope::Group,
            generation: Generation(1),
            cause: cause(),
        },
        UnixNanos(2_000_000),
    );
    let told = restarts(&api, "list:ours", "js").await.unwrap().restarts;
    assert_eq!(told[0].outcome(), pb::RestartOutcome::UnderWay);
    assert_eq!((told[0].ended_unix_nanos, told[0].phases.len()), (0, 0));

    let timeline = Timeline {
        generation: Generation(1),
        failed_at: UnixNanos(1_000_000),
        detected_at: UnixNanos(2_000_000),
        stopped_at: UnixNanos(4_500_000),
        running_at: UnixNanos(9_000_000),
        workers: 2,
        replaced: 1,
        from_standbys: 1,
        ahead_ms: 1500,
        ..Timeline::default()
    };
    post.record(
        &Announcement::Restarted {
            scope: Scope::Group,
            timeline,
            cause: cause(),
            level: RestartLevel::Pod,
        },
        UnixNanos(9_500_000),
    );
    let told = restarts(&api, "list:ours", "js").await.unwrap().restarts;
    assert_eq!(told.len(), 1);
    let one = &told[0];
    assert_eq!(
        (one.generation, one.scope(), one.outcome(), one.level.as_str()),
        (1, pb::RestartScope::Group, pb::RestartOutcome::Done, "Pod")
    );
    assert_eq!(
        (one.begun_unix_nanos, one.ended_unix_nanos),
        (1_000_000, 9_000_000)
    );
    assert_eq!((one.workers, one.replaced_pods, one.from_standbys), (2, 1, 1));
    assert_eq!(one.cause.as_ref().unwrap().reason, "WorkerExited");
    let phases: Vec<_> = one
        .phases
        .iter()
        .map(|phase| (phase.name.as_str(), phase.begin_ms, phase.duration_ms))
        .collect();
    // Unknown values are left out.
    assert_eq!(phases, [("detect", 0.0, 1.0), ("stop", 1.0, 2.5)]);
}

#[tokio::test]
async fn what_does_not_come_to_its_end_under_a_suspension_says_so() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(7));
    let begun = Announcement::Restarting {
        scope: Scope::Group,
        generation: Generation(1),
        cause: cause(),
    };
    post.record(&begun, UnixNanos(8));
    let mut state = running("ours", "js", 1);
    Arc::make_mut(&mut state.observed).suspended = true;
    post.replace_state(state);
    let told = restarts(&api, "list:ours", "js").await.unwrap().restarts;
    assert_eq!(told[0].outcome(), pb::RestartOutcome::Superseded);
}

#[tokio::test]
async fn restarts_are_listed_for_users_who_may_see_the_group() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(7));
    post.replace_state(running("ours", "js", 0));
    let status = restarts(&api, "patch:ours", "js").await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    let status = restarts(&api, "list:ours", "other").await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    let status = restarts(&api, "list:ours", "").await.unwrap_err();
    assert!(status.message().starts_with("name: "), "{status}");
}

#[tokio::test]
async fn stages_are_shown_with_what_they_wait_for() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(7));
    let mut state = running("ours", "js", 0);
    let stage = |name: &str, replicas: u32| json!({"name": name, "replicas": replicas, "template": {}});
    let mut late = stage("late", 3);
    late["dependsOn"] = json!([{"name": "early", "status": "Complete"}]);
    let counts = |name: &str, key: &str, jobs: u32| {
        let mut counts =
            json!({"name": name, "ready": 0, "succeeded": 0, "failed": 0, "active": 0, "suspended": 0});
        counts[key] = json!(jobs);
        counts
    };
    let jobset = json!({
        "metadata": {"namespace": "ours", "name": "js", "uid": "uid-js"},
        "spec": {"replicatedJobs": [stage("early", 2), late]},
        "status": {"restarts": 0, "replicatedJobsStatus": [counts("late", "suspended", 3), counts("early", "ready", 2)]},
    });
    state.jobset = Arc::new(serde_json::from_value(jobset).unwrap());
    post.replace_state(state);
    let omitted = pb::ListGroupsRequest {
        omit_workers: true,
        ..all()
    };
    let group = api.list("list:*", omitted).await.unwrap().groups.remove(0);
    let early = pb::Stage {
        name: "early".into(),
        started: true,
        jobs_expected: 2,
        jobs_ready: 2,
        ..pb::Stage::default()
    };
    let late = pb::Stage {
        name: "late".into(),
        depends_on: vec![pb::Dependency {
            stage: "early".into(),
            until: pb::Milestone::Complete.into(),
            reached: false,
        }],
        jobs_expected: 3,
        jobs_suspended: 3,
        ..pb::Stage::default()
    };
    assert_eq!(group.stages, [early, late]);
}
