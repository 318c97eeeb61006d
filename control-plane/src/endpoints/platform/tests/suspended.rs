//! Suspending and resuming, with an API server that keeps one JobSet.

use super::*;

/// The requests to the API server, and its JobSet.
#[derive(Default)]
struct StoredJobSet {
    jobset: Option<JobSet>,
    patches: Vec<Value>,
    /// This many patches come too late.
    conflicts: usize,
    /// The refusal of admission, if any.
    refuses: Option<&'static str>,
}

type Server = Arc<Mutex<StoredJobSet>>;

fn status(code: u16, message: &str) -> (u16, Vec<u8>) {
    let reason = match code {
        404 => "NotFound",
        409 => "Conflict",
        _ => "Forbidden",
    };
    let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
        "message": message, "reason": reason});
    (code, serde_json::to_vec(&status).unwrap())
}

fn answer(kept: &mut StoredJobSet, patch: Option<Value>) -> (u16, Vec<u8>) {
    let Some(jobset) = &mut kept.jobset else {
        return status(404, "not found");
    };
    if let Some(patch) = patch {
        kept.patches.push(patch.clone());
        if let Some(why) = kept.refuses {
            return status(403, why);
        }
        if kept.conflicts > 0 {
            kept.conflicts -= 1;
            return status(409, "the object has been modified");
        }
        jobset.spec.suspend = patch["spec"]["suspend"].as_bool();
    }
    (200, serde_json::to_vec(jobset).unwrap())
}

fn in_place(suspended: bool) -> JobSet {
    let mut jobset: JobSet = serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"namespace": "ours", "name": "js", "uid": "uid-js", "resourceVersion": "7"},
        "spec": {
            "suspend": suspended,
            "failurePolicy": {"maxRestarts": 1, "restartStrategy": "InPlaceRestart"},
            "replicatedJobs": [{"name": "w", "template": {"spec": {"template": {"spec": {"containers": [{"name": "worker"}]}}}}}],
        },
    }))
    .unwrap();
    jobset.spec.suspend = Some(suspended);
    jobset
}

async fn serving(kept: StoredJobSet) -> (Api, Server) {
    let server = Arc::new(Mutex::new(kept));
    let api = Api::start_with(answering(&server, answer)).await;
    api.board.set_leading();
    (api, server)
}

fn with_jobset(suspended: bool) -> StoredJobSet {
    StoredJobSet {
        jobset: Some(in_place(suspended)),
        ..StoredJobSet::default()
    }
}

async fn set(api: &Api, token: &str, suspended: bool) -> Result<pb::SetSuspendedResponse, Status> {
    let wish = pb::SetSuspendedRequest {
        namespace: "ours".into(),
        name: "js".into(),
        suspended,
    };
    let answer = api.client().set_suspended(with(token, wish)).await?;
    Ok(answer.into_inner())
}

#[tokio::test]
async fn it_is_written_once_and_on_what_was_read() {
    let (api, server) = serving(with_jobset(false)).await;
    for (suspended, changed) in [(true, true), (true, false), (false, true), (false, false)] {
        let done = set(&api, "patch:ours", suspended).await.unwrap();
        assert_eq!((done.uid.as_str(), done.changed), ("uid-js", changed));
    }
    let patch = |suspended: bool| json!({"metadata": {"uid": "uid-js", "resourceVersion": "7"}, "spec": {"suspend": suspended}});
    assert_eq!(server.lock().unwrap().patches, [patch(true), patch(false)]);
}

#[tokio::test]
async fn writes_of_other_clients_are_not_undone() {
    let (api, server) = serving(StoredJobSet {
        conflicts: 2,
        ..with_jobset(false)
    })
    .await;
    assert!(set(&api, "patch:ours", true).await.unwrap().changed);
    assert_eq!(server.lock().unwrap().patches.len(), 3);

    server.lock().unwrap().conflicts = 100;
    let status = set(&api, "patch:ours", false).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
}

#[tokio::test]
async fn refusals_say_what_is_wrong() {
    let (api, server) = serving(StoredJobSet::default()).await;
    let refused = async |token: &str| set(&api, token, true).await.unwrap_err();
    assert_eq!(refused("list:*").await.code(), Code::PermissionDenied);
    let status = refused("patch:ours").await;
    assert_eq!(status.code(), Code::NotFound);
    assert_eq!(status.message(), "name: there is no JobSet js in namespace ours");

    server.lock().unwrap().jobset = Some(jobset("ours", "js"));
    let status = refused("patch:ours").await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("is not restarted in place"), "{status}");
    assert!(server.lock().unwrap().patches.is_empty());

    *server.lock().unwrap() = StoredJobSet {
        refuses: Some("admission webhook says no"),
        ..with_jobset(false)
    };
    let status = refused("patch:ours").await;
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("admission webhook says no"), "{status}");
}

#[tokio::test]
async fn a_follower_leaves_it_to_the_leader() {
    let server = Arc::new(Mutex::new(with_jobset(false)));
    let api = Api::start_with(answering(&server, answer)).await;
    let status = set(&api, "*:*", true).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert!(server.lock().unwrap().patches.is_empty());
}
