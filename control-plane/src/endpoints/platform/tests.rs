//! The service over real TLS on loopback, with groups that the test shows on the board.

use std::sync::Mutex;

use async_trait::async_trait;
use http::Response as HttpResponse;
use kube::client::Body;
use kube::runtime::reflector::store;
use kube::runtime::reflector::store::Writer;
use kube::runtime::watcher;
use lockstep_api::JobSet;
use lockstep_core::jobset::in_place::Agents;
use lockstep_core::restart::{
    Cause, Durable, Exit, Generation, GroupPhase, Heartbeat, Identity, Incarnation, Observed, Phase, PodFact,
    Progress, Reason, Report, UnixNanos, Worker,
};
use lockstep_proto::platform::v1 as pb;
use lockstep_proto::platform::v1::platform_client::PlatformClient;
use lockstep_proto::platform::v1::watch_groups_response::Event;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tower::service_fn;

use super::authorize::{Caller, Refusal};
use super::*;
use crate::controllers::restart::board::{self, Board, Post, Snapshot};
use crate::hub::Role;
use crate::k8s::watch::PackedJobSet;
use crate::leader::LeaderAddress;
use crate::net::tls;

mod dry_run;
mod health;
mod looked_up;
mod nodes;
mod refusals;
mod restart_workers;
mod suspended;
mod watches;

const PATIENCE: Duration = Duration::from_secs(30);

/// The token `lister:ours` may list in the namespace `ours`; `*:*` may do everything in all
/// namespaces.
struct Tokens;

#[async_trait]
impl Authorizer for Tokens {
    async fn authorize(
        &self,
        caller: &Caller,
        verb: &'static str,
        namespace: &str,
        _name: &str,
    ) -> Result<(), Refusal> {
        let value = caller.metadata.get("authorization").ok_or(Refusal::Missing)?;
        let token = value
            .to_str()
            .ok()
            .and_then(|value| value.strip_prefix("Bearer "));
        let (may, scope) = token
            .and_then(|token| token.split_once(':'))
            .ok_or(Refusal::Unknown)?;
        if (may == "*" || may == verb) && (scope == "*" || scope == namespace) {
            return Ok(());
        }
        Err(Refusal::Denied {
            user: may.to_owned(),
            verb,
            location: authorize::location(namespace, ""),
        })
    }

    fn refused(&self, _: &Caller, _: &Refusal) {}
}

struct Api {
    board: Arc<Board>,
    jobsets: Writer<PackedJobSet>,
    role: Arc<Role>,
    patches: Arc<Mutex<Vec<Value>>>,
    endpoint: Endpoint,
    channel: Channel,
    shutdown: CancellationToken,
    server: JoinHandle<anyhow::Result<()>>,
}

impl Api {
    async fn start() -> Self {
        let patches = Arc::default();
        let mut api = Self::start_with(api_server(&patches)).await;
        api.patches = patches;
        api
    }

    /// The same with this API server.
    async fn start_with(client: kube::Client) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let certificate = tls::from_dir(dir.path()).unwrap();
        let identity = tls::grpc(tokio::sync::watch::channel(Some(certificate)).1).unwrap();
        let ca = std::fs::read_to_string(dir.path().join("ca.crt")).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (board, shutdown) = (Board::new(), CancellationToken::new());
        let (reader, jobsets) = store::<PackedJobSet>();
        let role = Role::new(LeaderAddress::unknown());
        let service = PlatformService::new(
            Arc::clone(&board),
            reader,
            client,
            Arc::new(Tokens),
            Agents::ByNode,
            shutdown.clone(),
        )
        .with_hub(Some(Arc::clone(&role)));
        let server = tokio::spawn(server::serve_on(listener, identity, service));
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(ca))
            .domain_name(tls::SERVER_NAME);
        let endpoint = Channel::from_shared(format!("https://{address}"))
            .unwrap()
            .tls_config(tls)
            .unwrap();
        let channel = endpoint.connect().await.unwrap();
        Self {
            board,
            jobsets,
            role,
            patches: Arc::default(),
            endpoint,
            channel,
            shutdown,
            server,
        }
    }

    async fn leading() -> Self {
        let api = Self::start().await;
        api.board.set_leading();
        api
    }

    fn client(&self) -> PlatformClient<Channel> {
        PlatformClient::new(self.channel.clone())
    }

    async fn list(&self, token: &str, list: pb::ListGroupsRequest) -> Result<pb::ListGroupsResponse, Status> {
        let answer = self.client().list_groups(with(token, list)).await?;
        Ok(answer.into_inner())
    }

    async fn watch(&self, token: &str, watch: pb::WatchGroupsRequest) -> Result<Watch, Status> {
        let answer = self.client().watch_groups(with(token, watch)).await?;
        Ok(Watch(answer.into_inner()))
    }

    async fn restart(
        &self,
        token: &str,
        request: pb::RestartGroupRequest,
    ) -> Result<pb::RestartGroupResponse, Status> {
        let answer = self.client().restart_group(with(token, request)).await?;
        Ok(answer.into_inner())
    }
}

struct Watch(Streaming<pb::WatchGroupsResponse>);

impl Watch {
    async fn next(&mut self) -> Event {
        let message = tokio::time::timeout(PATIENCE, self.0.message()).await.unwrap();
        message.unwrap().unwrap().event.unwrap()
    }

    async fn changed(&mut self) -> pb::Group {
        match self.next().await {
            Event::Changed(group) => group,
            other => panic!("{other:?}"),
        }
    }
}

fn with<M>(token: &str, message: M) -> Request<M> {
    let mut request = Request::new(message);
    request
        .metadata_mut()
        .insert("authorization", format!("Bearer {token}").parse().unwrap());
    request
}

/// An API server that answers from what it keeps, and from the body of a patch: with a code and a
/// body.
fn answering<T: Send + 'static>(
    kept: &Arc<Mutex<T>>,
    answer: fn(&mut T, Option<Value>) -> (u16, Vec<u8>),
) -> kube::Client {
    let kept = Arc::clone(kept);
    let service = service_fn(move |request: http::Request<Body>| {
        let kept = Arc::clone(&kept);
        async move {
            let is_patch = request.method() == http::Method::PATCH;
            let bytes = request.into_body().collect_bytes().await?;
            let patch = is_patch.then(|| serde_json::from_slice(&bytes).unwrap());
            let (code, body) = answer(&mut kept.lock().unwrap(), patch);
            let answer = HttpResponse::builder().status(code).body(Body::from(body));
            Ok::<_, kube::Error>(answer.unwrap())
        }
    });
    kube::Client::new(service, "default")
}

/// Accepts every patch, and remembers it.
fn api_server(patches: &Arc<Mutex<Vec<Value>>>) -> kube::Client {
    answering(patches, |patches, patch| {
        patches.push(patch.unwrap());
        (200, serde_json::to_vec(&jobset("ours", "any")).unwrap())
    })
}

fn jobset(namespace: &str, name: &str) -> JobSet {
    serde_json::from_value(json!({
        "apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet",
        "metadata": {"namespace": namespace, "name": name, "uid": format!("uid-{name}")},
        "spec": {"replicatedJobs": []},
    }))
    .unwrap()
}

pub(super) fn identity(index: u32) -> Identity {
    Identity {
        job: "js-w-0".into(),
        index,
        container: "worker".into(),
    }
}

/// A group of two workers: the first runs, the second has no pod yet.
pub(super) fn running(namespace: &str, name: &str, generation: u64) -> Snapshot {
    let incarnation = Incarnation {
        pod_uid: "p0".into(),
        container_id: "c0".into(),
    };
    let report = Report {
        identity: identity(0),
        node: "n1".into(),
        pod_name: "pod-0".into(),
        phase: Phase::Running,
        generation: Generation(generation),
        counted_restarts: 0,
        since: UnixNanos(7),
        heartbeat: Heartbeat::Well,
        released_generation: None,
        standby: None,
        progress: Some(Arc::new(Progress {
            step: Some(12),
            section: "load".to_owned(),
            ..Progress::default()
        })),
    };
    let pod = PodFact {
        uid: "p0".into(),
        name: "pod-0".into(),
        node: Some("n1".into()),
        running: true,
        node_lost: false,
        deleting: false,
    };
    let with_pod = Worker {
        stage: "w".into(),
        pods: vec![pod],
        ..Worker::default()
    };
    let without_pod = Worker {
        stage: "w".into(),
        ..Worker::default()
    };
    let mut observed = Observed {
        workers: [(identity(0), with_pod), (identity(1), without_pod)].into(),
        reports: [(incarnation, report)].into(),
        ..Observed::default()
    };
    observed.policy.max_restarts = 3;
    Snapshot {
        jobset: Arc::new(jobset(namespace, name)),
        observed: Arc::new(observed),
        phase: GroupPhase::InSync,
        generation: Generation(generation),
        released: Generation(generation),
        restarts: 1,
        cause: None,
        level: None,
    }
}

fn names(groups: &[pb::Group]) -> Vec<&str> {
    groups.iter().map(|group| group.name.as_str()).collect()
}

fn all() -> pb::ListGroupsRequest {
    pb::ListGroupsRequest::default()
}

fn restart(name: &str, token: &str) -> pb::RestartGroupRequest {
    pb::RestartGroupRequest {
        namespace: "ours".into(),
        name: name.into(),
        token: token.into(),
    }
}

#[tokio::test]
async fn a_group_is_listed_with_its_workers_and_its_last_cause() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(1));
    let mut state = running("ours", "js", 4);
    state.cause = Some(Cause {
        reason: Reason::WorkerExited,
        identity: Some(identity(1)),
        pod: "pod-1".into(),
        node: "n2".into(),
        exit: Some(Exit { code: 137, signal: 9 }),
        at: Some(UnixNanos(5)),
        said: None,
    });
    post.replace_state(state);
    let group = api.list("list:*", all()).await.unwrap().groups.remove(0);
    assert_eq!((group.namespace.as_str(), group.uid.as_str()), ("ours", "uid-js"));
    assert_eq!(
        (group.kind(), group.phase()),
        (pb::Kind::Supervised, pb::GroupPhase::InSync)
    );
    assert_eq!((group.generation, group.released), (4, 4));
    assert_eq!((group.restarts, group.max_restarts), (1, 3));
    assert_eq!((group.workers_expected, group.workers_up), (2, 1));
    let workers: Vec<_> = group
        .workers
        .iter()
        .map(|worker| (worker.pod.as_str(), worker.node.as_str(), worker.phase()))
        .collect();
    assert_eq!(
        workers,
        [
            ("pod-0", "n1", pb::WorkerPhase::Running),
            ("", "", pb::WorkerPhase::Pending)
        ]
    );
    let said = group
        .workers
        .iter()
        .map(|worker| (worker.step, worker.section.as_str()));
    assert_eq!(said.collect::<Vec<_>>(), [(Some(12), "load"), (None, "")]);
    let cause = group.last_cause.unwrap();
    assert_eq!(
        (cause.reason.as_str(), cause.time_unix_nanos),
        ("WorkerExited", 5)
    );
    assert_eq!(cause.exit, Some(pb::Exit { code: 137, signal: 9 }));
    assert!(cause.message.contains("by signal 9"), "{}", cause.message);

    let omitted = pb::ListGroupsRequest {
        omit_workers: true,
        ..all()
    };
    let group = api.list("list:*", omitted).await.unwrap().groups.remove(0);
    assert_eq!((group.workers.len(), group.workers_expected), (0, 2));
}

#[tokio::test]
async fn pages_hold_every_group_once() {
    let api = Api::leading().await;
    let posts: Vec<_> = [("a", "x"), ("a", "y"), ("b", "x"), ("c", "z")]
        .into_iter()
        .map(|(namespace, name)| {
            let post = api.board.open_post(namespace, name, UnixNanos(1));
            post.replace_state(running(namespace, name, 0));
            post
        })
        .collect();
    let mut seen = Vec::new();
    let mut page = pb::ListGroupsRequest {
        page_size: 3,
        ..all()
    };
    loop {
        let answer = api.list("list:*", page.clone()).await.unwrap();
        seen.extend(
            answer
                .groups
                .iter()
                .map(|group| format!("{}/{}", group.namespace, group.name)),
        );
        page.page_token = answer.next_page_token;
        if page.page_token.is_empty() {
            break;
        }
        assert_eq!(seen.len(), 3);
    }
    assert_eq!(seen, ["a/x", "a/y", "b/x", "c/z"]);
    let of_a = pb::ListGroupsRequest {
        namespace: "a".into(),
        ..all()
    };
    let of_a = api.list("list:a", of_a).await.unwrap();
    assert_eq!(
        (names(&of_a.groups), of_a.next_page_token),
        (vec!["x", "y"], String::new())
    );
    drop(posts);
    assert!(api.list("list:*", all()).await.unwrap().groups.is_empty());
}

#[tokio::test]
async fn a_restart_is_asked_for_once_per_token() {
    let api = Api::leading().await;
    let post = api.board.open_post("ours", "js", UnixNanos(1));
    post.replace_state(running("ours", "js", 4));
    let answer = api.restart("patch:ours", restart("js", "t-1")).await.unwrap();
    assert_eq!((answer.token.as_str(), answer.uid.as_str()), ("t-1", "uid-js"));
    assert_eq!((answer.generation, answer.handled), (4, false));
    let patch =
        json!({"metadata": {"uid": "uid-js", "annotations": {"lockstep.dev/restart-request": "t-1"}}});
    assert_eq!(*api.patches.lock().unwrap(), [patch]);

    // The coordinator has handled it.
    let mut state = running("ours", "js", 5);
    Arc::make_mut(&mut state.observed).durable = Durable {
        handled_request: Some("t-1".into()),
        ..Durable::default()
    };
    post.replace_state(state);
    let answer = api.restart("patch:ours", restart("js", "t-1")).await.unwrap();
    assert_eq!((answer.generation, answer.handled), (5, true));
    assert_eq!(api.patches.lock().unwrap().len(), 1);

    let made = api.restart("patch:ours", restart("js", "")).await.unwrap();
    assert!(!made.token.is_empty() && !made.handled);
    assert_eq!(api.patches.lock().unwrap().len(), 2);
}
