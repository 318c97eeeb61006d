//! Worker restarts, with an API server that keeps one JobSet.

use lockstep_core::restart::{RestartLevel, Scope};

use super::*;

/// The requests to the API server, and its JobSet.
struct StoredJobSet {
    jobset: JobSet,
    patches: Vec<Value>,
    /// This many patches come too late.
    conflicts: usize,
}

type Server = Arc<Mutex<StoredJobSet>>;

const ANNOTATION: &str = "lockstep.dev/restart-workers";

fn answer(kept: &mut StoredJobSet, patch: Option<Value>) -> (u16, Vec<u8>) {
    if let Some(patch) = patch {
        kept.patches.push(patch.clone());
        if kept.conflicts > 0 {
            kept.conflicts -= 1;
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 409,
                "message": "the object has been modified", "reason": "Conflict"});
            return (409, serde_json::to_vec(&status).unwrap());
        }
        let said = patch["metadata"]["annotations"][ANNOTATION].as_str().unwrap();
        annotate(&mut kept.jobset, said);
    }
    (200, serde_json::to_vec(&kept.jobset).unwrap())
}

fn annotate(jobset: &mut JobSet, said: &str) {
    let annotations = jobset.metadata.annotations.get_or_insert_default();
    annotations.insert(ANNOTATION.to_owned(), said.to_owned());
}

/// A driver, and two parameter servers with worker restarts.
fn trained() -> JobSet {
    let template = json!({"spec": {"completions": 2, "parallelism": 2, "template": {"spec": {"containers": [{"name": "worker"}]}}}});
    let mut alone = template.clone();
    alone["metadata"] = json!({"annotations": {"lockstep.dev/restart-scope": "worker"}});
    serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"namespace": "ours", "name": "js", "uid": "uid-js", "resourceVersion": "7"},
        "spec": {
            "failurePolicy": {"maxRestarts": 1, "restartStrategy": "InPlaceRestart"},
            "replicatedJobs": [{"name": "w", "template": template}, {"name": "ps", "replicas": 2, "template": alone}],
        },
    }))
    .unwrap()
}

/// Its state, with worker restarts by agents.
fn state(jobset: &JobSet) -> Snapshot {
    let mut state = running("ours", "js", 4);
    state.jobset = Arc::new(jobset.clone());
    let observed = Arc::make_mut(&mut state.observed);
    for job in ["js-ps-0", "js-ps-1"] {
        let identity = Identity {
            job: job.into(),
            ..identity(0)
        };
        let worker = Worker {
            stage: "ps".into(),
            scope: Scope::Worker,
            level: RestartLevel::Process,
            ..Worker::default()
        };
        observed.workers.insert(identity, worker);
    }
    state
}

async fn serving() -> (Api, Post, Server) {
    let kept = StoredJobSet {
        jobset: trained(),
        patches: Vec::new(),
        conflicts: 0,
    };
    let server = Arc::new(Mutex::new(kept));
    let api = Api::start_with(answering(&server, answer)).await;
    api.board.set_leading();
    let post = api.board.open_post("ours", "js", UnixNanos(1));
    post.replace_state(state(&trained()));
    (api, post, server)
}

fn job(name: &str) -> pb::target::Workers {
    pb::target::Workers::Job(name.into())
}

fn stage(name: &str) -> pb::target::Workers {
    pb::target::Workers::ReplicatedJob(name.into())
}

fn worker(job: &str, index: u32, container: &str) -> pb::target::Workers {
    pb::target::Workers::Worker(pb::WorkerIdentity {
        job: job.into(),
        completion_index: index,
        container: container.into(),
    })
}

impl Api {
    async fn restart_workers(
        &self,
        caller: &str,
        only: pb::target::Workers,
        token: &str,
    ) -> Result<pb::RestartWorkersResponse, Status> {
        let request = pb::RestartWorkersRequest {
            namespace: "ours".into(),
            name: "js".into(),
            token: token.into(),
            only: Some(pb::Target { workers: Some(only) }),
        };
        let answer = self.client().restart_workers(with(caller, request)).await?;
        Ok(answer.into_inner())
    }
}

#[tokio::test]
async fn it_is_asked_for_on_what_was_read_and_once() {
    let (api, post, server) = serving().await;
    server.lock().unwrap().conflicts = 2;
    for _ in 0..2 {
        let answer = api
            .restart_workers("patch:ours", worker("js-ps-1", 1, "worker"), "t 1")
            .await
            .unwrap();
        assert_eq!(
            (answer.token.as_str(), answer.uid.as_str(), answer.handled),
            ("t 1", "uid-js", false)
        );
    }
    let said = "worker/js-ps-1/1/worker t 1";
    let patch =
        json!({"metadata": {"uid": "uid-js", "resourceVersion": "7", "annotations": {ANNOTATION: said}}});
    assert_eq!(server.lock().unwrap().patches, vec![patch; 3]);

    // Another request waits until the leader has handled it.
    let status = api
        .restart_workers("patch:ours", stage("ps"), "t 2")
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Aborted, "{status}");
    let handled = json!({"restarts": 0, "inPlaceRestart": {"handledWorkerRestart": said}});
    server.lock().unwrap().jobset.status = Some(serde_json::from_value(handled).unwrap());
    let mut state = state(&trained());
    Arc::make_mut(&mut state.observed).durable.handled_worker_restart = Some(said.to_owned());
    post.replace_state(state);
    let again = worker("js-ps-1", 1, "worker");
    assert!(
        api.restart_workers("patch:ours", again, "t 1")
            .await
            .unwrap()
            .handled
    );
    let group = api.list(
        "list:ours",
        pb::ListGroupsRequest {
            namespace: "ours".into(),
            ..Default::default()
        },
    );
    assert_eq!(group.await.unwrap().groups[0].handled_worker_restart, "t 1");
    let answer = api.restart_workers("patch:ours", stage("ps"), "").await.unwrap();
    assert!(!answer.token.is_empty() && !answer.handled);
    assert_eq!(server.lock().unwrap().patches.len(), 4);
}

/// One table of requests and refusals, which is why it is long.
#[tokio::test]
async fn refusals_name_the_field_and_nothing_is_written() {
    let (api, post, server) = serving().await;
    for (only, code, text) in [
        (stage(""), Code::InvalidArgument, "only.replicated_job: "),
        (job("Not a name"), Code::InvalidArgument, "only.job: "),
        (worker("", 0, ""), Code::InvalidArgument, "only.worker.job: "),
        (
            worker("js-ps-0", 0, "A"),
            Code::InvalidArgument,
            "only.worker.container: ",
        ),
        (
            stage("x"),
            Code::NotFound,
            "only.replicated_job: the JobSet js in namespace ours has no replicatedJob x",
        ),
        (job("js-ps-2"), Code::NotFound, "only.job: "),
        (worker("js-x-0", 0, ""), Code::NotFound, "only.worker.job: "),
        (
            worker("js-ps-0", 2, ""),
            Code::NotFound,
            "only.worker.completion_index: ",
        ),
        (
            worker("js-ps-0", 0, "side"),
            Code::NotFound,
            "only.worker.container: ",
        ),
        (
            stage("w"),
            Code::FailedPrecondition,
            "they run in step with others",
        ),
        (
            worker("js-w-0", 1, ""),
            Code::FailedPrecondition,
            "they run in step with others",
        ),
    ] {
        let status = api.restart_workers("*:*", only, "t").await.unwrap_err();
        assert_eq!(status.code(), code, "{status}");
        assert!(status.message().contains(text), "{status}");
    }
    let status = api.restart_workers("list:*", stage("ps"), "t").await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
    let nobody = pb::RestartWorkersRequest {
        namespace: "ours".into(),
        name: "js".into(),
        ..pb::RestartWorkersRequest::default()
    };
    let status = api
        .client()
        .restart_workers(with("*:*", nobody))
        .await
        .unwrap_err();
    assert_eq!(
        status.message(),
        "only: is required: a replicatedJob, a Job or a worker"
    );

    for (level, scope, text) in [
        (RestartLevel::Container, Scope::Group, "have no agent"),
        (
            RestartLevel::Process,
            Scope::Group,
            "has a version without worker restarts",
        ),
    ] {
        let mut state = state(&trained());
        for worker in Arc::make_mut(&mut state.observed).workers.values_mut() {
            (worker.level, worker.scope) = (level, scope);
        }
        post.replace_state(state);
        let status = api.restart_workers("*:*", job("js-ps-0"), "t").await.unwrap_err();
        assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
        assert!(status.message().contains(text), "{status}");
    }
    let mut state = state(&trained());
    let observed = Arc::make_mut(&mut state.observed);
    for index in 0..300 {
        let one = Identity {
            index,
            ..observed.workers.keys().next().unwrap().clone()
        };
        let like = observed
            .workers
            .values()
            .find(|worker| worker.stage == "ps")
            .unwrap()
            .clone();
        observed.workers.insert(one, like);
    }
    post.replace_state(state);
    let status = api.restart_workers("*:*", stage("ps"), "t").await.unwrap_err();
    assert!(
        status.message().contains("256 that may restart at a time"),
        "{status}"
    );
    assert!(server.lock().unwrap().patches.is_empty());
}

#[tokio::test]
async fn a_dry_run_asks_the_groups_task_and_writes_nothing() {
    let (api, mut post, server) = serving().await;
    let asked = tokio::spawn(async move {
        let question = post.next_question().await;
        let said = format!("{:?}", question.wish());
        let observed = state(&trained()).observed;
        let coordinator = lockstep_core::restart::Coordinator::recover(
            lockstep_core::restart::Epoch(1),
            &Durable::default(),
            15_000,
            UnixNanos(1),
        );
        let preview = question.preview(&coordinator, &observed, UnixNanos(1));
        question.answer(preview, observed);
        (post, said)
    });
    let request = pb::DryRunRestartWorkersRequest {
        namespace: "ours".into(),
        name: "js".into(),
        token: "t".into(),
        only: Some(pb::Target {
            workers: Some(stage("ps")),
        }),
    };
    let answer = api
        .client()
        .dry_run_restart_workers(with("patch:ours", request))
        .await;
    let said = answer.unwrap().into_inner().dry_run.unwrap();
    let (_post, wish) = asked.await.unwrap();
    assert!(wish.contains("ReplicatedJob(\"ps\")"), "{wish}");
    assert_eq!(
        (said.effect(), said.reason.as_str()),
        (pb::RestartEffect::Nothing, "Recovering")
    );
    assert!(server.lock().unwrap().patches.is_empty());
}
