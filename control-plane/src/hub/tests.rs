//! The hub over real TLS on loopback, with a plain tonic client in place of a daemon.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lockstep_core::restart::{Desired, Epoch, Generation, Incarnation, Phase, WorkerRestart};
use lockstep_proto::NODE_PROTOCOL;
use lockstep_proto::node::v1::node_hub_client::NodeHubClient;
use lockstep_proto::node::v1::{self as pb, hub_message, node_message};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::{Certificate, Channel, ClientTlsConfig};
use tonic::{Code, Request, Status, Streaming};

use super::auth::testing::Cluster;
use super::service::serve_on;
use super::{Gate, Outbox, Published, Refusals, Registry, Role};
use crate::leader::LeaderAddress;
use crate::net::tls;

mod health;
mod identity;
mod lies;
mod memory;
mod port;
mod recorded;
mod two_streams;

const UID: &str = "group-1";
/// The places that the test hub has for each address: all clients of a test share one address.
const UNKNOWN_CONNECTIONS: usize = 32;

struct Hub {
    registry: Arc<Registry>,
    role: Arc<Role>,
    /// Ends the term in which it leads.
    term: CancellationToken,
    streams: TaskTracker,
    cluster: Cluster,
    refusals: Arc<Refusals>,
    address: SocketAddr,
    ca: String,
    shutdown: CancellationToken,
    server: JoinHandle<anyhow::Result<()>>,
}

struct Node {
    tx: mpsc::Sender<pb::NodeMessage>,
    rx: Streaming<pb::HubMessage>,
}

impl Hub {
    async fn start() -> Self {
        Self::with_grace(super::auth::GRACE).await
    }

    /// Makes it lead from now on.
    async fn lead(&self) {
        let (role, registry, end) = (
            Arc::clone(&self.role),
            Arc::clone(&self.registry),
            self.term.clone(),
        );
        self.streams.spawn(async move { role.lead(registry, end).await });
        while self.role.within(|_| ()).is_err() {
            tokio::task::yield_now().await;
        }
    }

    async fn with_grace(grace: Duration) -> Self {
        let hub = Self::follower(grace, LeaderAddress::unknown()).await;
        hub.lead().await;
        hub
    }

    /// A replica that does not lead.
    async fn follower(grace: Duration, leader: LeaderAddress) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let dir = tempfile::tempdir().unwrap();
        let certificate = tls::from_dir(dir.path()).unwrap();
        let identity = tls::grpc(tokio::sync::watch::channel(Some(certificate)).1).unwrap();
        // A second start finds the same CA and signs a new certificate.
        let ca = std::fs::read_to_string(dir.path().join("ca.crt")).unwrap();
        tls::from_dir(dir.path()).unwrap();
        assert_eq!(ca, std::fs::read_to_string(dir.path().join("ca.crt")).unwrap());
        let refusals = Arc::<Refusals>::default();
        let registry = Registry::noting(Epoch(7), Arc::clone(&refusals));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shutdown = CancellationToken::new();
        let cluster = Cluster::new();
        let gate = Gate {
            authenticator: cluster.authenticator(),
            refusals: Arc::clone(&refusals),
            unknown_connections: UNKNOWN_CONNECTIONS,
        };
        let (authenticator, end) = (Arc::clone(&gate.authenticator), shutdown.clone());
        tokio::spawn(async move { authenticator.keep(end).await });
        let role = Role::new(leader);
        let server = tokio::spawn(serve_on(
            listener,
            identity,
            Arc::clone(&role),
            gate,
            grace,
            shutdown.clone(),
        ));
        Self {
            registry,
            role,
            term: shutdown.child_token(),
            streams: TaskTracker::new(),
            cluster,
            refusals,
            address,
            ca,
            shutdown,
            server,
        }
    }

    /// Lets a node connect and report this, without a stream.
    fn says(&self, node: &str, worker: pb::WorkerState) -> u64 {
        let outbox = Outbox::new(pb::Welcome::default());
        self.registry
            .connect(node, &outbox, *NODE_PROTOCOL.end(), vec![worker])
    }

    async fn client(&self) -> NodeHubClient<Channel> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .domain_name(tls::SERVER_NAME);
        let endpoint = Channel::from_shared(format!("https://{}", self.address))
            .unwrap()
            .tls_config(tls)
            .unwrap();
        NodeHubClient::new(endpoint.connect().await.unwrap())
    }

    async fn connect(&self, node: &str, hello: pb::Hello) -> Result<Node, Status> {
        let authorization = format!("Bearer {}", self.cluster.token(node));
        self.connect_as(&[("authorization", &authorization)], hello).await
    }

    async fn connect_as(&self, headers: &[(&'static str, &str)], hello: pb::Hello) -> Result<Node, Status> {
        let (tx, messages) = mpsc::channel(16);
        tx.send(pb::NodeMessage {
            kind: Some(node_message::Kind::Hello(hello)),
        })
        .await
        .unwrap();
        let mut request = Request::new(ReceiverStream::new(messages));
        for (name, value) in headers {
            request.metadata_mut().insert(*name, value.parse().unwrap());
        }
        let rx = self.client().await.connect(request).await?.into_inner();
        Ok(Node { tx, rx })
    }
}

impl Node {
    async fn next(&mut self) -> hub_message::Kind {
        self.rx.message().await.unwrap().unwrap().kind.unwrap()
    }

    async fn desired(&mut self) -> pb::Group {
        match self.next().await {
            hub_message::Kind::Desired(mut desired) => desired.groups.remove(0),
            other => panic!("{other:?}"),
        }
    }
}

fn hello(snapshot: Vec<pb::WorkerState>) -> pb::Hello {
    pb::Hello {
        protocol_min: 1,
        protocol_max: 1,
        daemon_version: "test".into(),
        boot_id: "b".into(),
        snapshot,
        health: None,
    }
}

fn worker(phase: pb::Phase, generation: u64, revision: u64) -> pb::WorkerState {
    pb::WorkerState {
        group_uid: UID.into(),
        job: "js-w-0".into(),
        container: "worker".into(),
        incarnation: Some(pb::Incarnation {
            pod_uid: "p1".into(),
            container_id: "c1".into(),
        }),
        pod_name: "js-w-0-0-abcde".into(),
        phase: phase.into(),
        generation,
        revision,
        ..pb::WorkerState::default()
    }
}

fn published(generation: u64) -> Published {
    Published {
        desired: Desired {
            generation: Generation(generation),
            ..Desired::default()
        },
        nodes: Arc::new(BTreeSet::from(["n1".to_owned()])),
        ..Published::default()
    }
}

fn has_reported(link: &super::GroupLink, node: &str) -> bool {
    !link.reported_nodes(&BTreeSet::from([node.to_owned()])).is_empty()
}

/// Waits until the only report has this phase.
async fn wait_for_phase(link: &super::GroupLink, phase: Phase) {
    tokio::time::timeout(Duration::from_secs(10), async {
        while link.all_reports().first().map(|(_, report)| report.phase) != Some(phase) {
            link.changed().await;
        }
    })
    .await
    .unwrap_or_else(|_| panic!("{:?} never became {phase:?}", link.all_reports()));
}

#[tokio::test]
async fn a_daemon_of_another_protocol_learns_both_ranges() {
    let hub = Hub::start().await;
    let future = pb::Hello {
        protocol_min: 4,
        protocol_max: 5,
        ..hello(vec![])
    };
    let refused = hub.connect("n1", future).await.err().unwrap();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(
        refused.message().contains("4 to 5") && refused.message().contains("1 to 3"),
        "{refused}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_node_that_has_obeyed_a_higher_epoch_outbids_the_leader_unless_others_know_better() {
    let says = |registry: &Registry, node: &str, epoch: u64| {
        let state = pb::WorkerState {
            epoch,
            ..worker(pb::Phase::Running, 0, 1)
        };
        registry.connect(node, &Outbox::new(pb::Welcome::default()), 1, vec![state]);
    };
    let registry = Registry::new(Epoch(7));
    says(&registry, "n1", 9);
    assert_eq!(registry.outbid().await, Epoch(9));

    let refusals = Arc::<Refusals>::default();
    let registry = Registry::noting(Epoch(7), Arc::clone(&refusals));
    says(&registry, "n1", 9);
    says(&registry, "n2", 6);
    let outbid = tokio::time::timeout(Duration::from_secs(3600), registry.outbid()).await;
    assert!(outbid.is_err(), "one of two is not believed: {outbid:?}");
    assert_eq!(registry.other_epoch(), Some(Epoch(9)));
    assert_eq!(refusals.count("higher_epoch"), 1);
}

#[test]
fn a_node_that_is_gone_for_good_is_forgotten_with_its_last_worker() {
    let registry = Registry::new(Epoch(7));
    let link = registry.claim(UID);
    let outbox = Outbox::new(pb::Welcome::default());
    let empty = registry.connect("n1", &outbox, 1, Vec::new());
    let busy = registry.connect("n2", &outbox, 1, vec![worker(pb::Phase::Running, 0, 1)]);
    registry.forget_nodes(Duration::ZERO);
    assert!(
        has_reported(&link, "n1") && has_reported(&link, "n2"),
        "they are connected"
    );
    registry.disconnect("n1", empty);
    registry.disconnect("n2", busy);
    registry.forget_nodes(Duration::from_secs(60));
    assert!(has_reported(&link, "n1"), "it may come back");
    registry.forget_nodes(Duration::ZERO);
    assert!(!has_reported(&link, "n1") && has_reported(&link, "n2"));
    link.drop_gone_pods::<()>(&std::collections::BTreeMap::new(), Duration::ZERO);
    registry.forget_nodes(Duration::ZERO);
    assert!(!has_reported(&link, "n2"));
}

#[tokio::test]
async fn reports_go_up_and_desired_state_comes_down_again_after_a_reconnect() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let mut node = hub
        .connect("n1", hello(vec![worker(pb::Phase::Fresh, 0, 1)]))
        .await
        .unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(welcome) if welcome.epoch == 7));
    wait_for_phase(&link, Phase::Fresh).await;
    assert!(has_reported(&link, "n1") && !has_reported(&link, "n2"));

    let fresh = Incarnation {
        pod_uid: "p1".into(),
        container_id: "c1".into(),
    };
    let mut start = published(0);
    start.desired.release = true;
    start.desired.fresh.insert(fresh);
    link.publish(start);
    let group = node.desired().await;
    assert!(group.release && group.fresh.len() == 1 && group.epoch == 7);

    let report = pb::Report {
        workers: vec![worker(pb::Phase::Running, 0, 2)],
        ..pb::Report::default()
    };
    node.tx
        .send(pb::NodeMessage {
            kind: Some(node_message::Kind::Report(report)),
        })
        .await
        .unwrap();
    wait_for_phase(&link, Phase::Running).await;

    drop(node);
    wait_for_phase(&link, Phase::Unlinked).await;
    link.publish(published(1));
    let mut node = hub
        .connect("n1", hello(vec![worker(pb::Phase::Running, 0, 2)]))
        .await
        .unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
    assert_eq!(node.desired().await.generation, 1);
    wait_for_phase(&link, Phase::Running).await;
}

#[tokio::test]
async fn a_stale_report_changes_nothing_and_another_node_cannot_speak_for_a_pod() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let session = hub.says("n1", worker(pb::Phase::Running, 0, 5));
    hub.registry
        .report("n1", session, vec![worker(pb::Phase::Fresh, 0, 4)]);
    hub.says("n2", worker(pb::Phase::Lost, 0, 9));
    let phases: Vec<_> = link
        .all_reports()
        .into_iter()
        .map(|(_, report)| (report.node, report.phase))
        .collect();
    assert_eq!(phases.len(), 2);
    assert_eq!(phases[0], ("n1".into(), Phase::Running));
}

#[tokio::test]
async fn the_newest_desired_state_replaces_the_ones_before_and_is_not_repeated() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    for generation in 1..=50 {
        link.publish(published(generation));
    }
    let mut node = hub.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
    assert_eq!(node.desired().await.generation, 50);
    link.publish(published(50));
    link.publish(published(51));
    assert_eq!(node.desired().await.generation, 51);
}

#[tokio::test]
async fn a_node_learns_of_the_worker_restarts_of_its_own_workers() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let mut node = hub
        .connect("n1", hello(vec![worker(pb::Phase::Exited, 0, 1)]))
        .await
        .unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
    wait_for_phase(&link, Phase::Exited(lockstep_core::restart::Exit::default())).await;
    let incarnation = |pod_uid: &str| Incarnation {
        pod_uid: pod_uid.to_owned(),
        container_id: "c1".to_owned(),
    };
    let restart = WorkerRestart {
        generation: Generation(3),
        release: true,
    };
    let mut wanted = published(2);
    wanted.desired.worker_restarts = [(incarnation("p1"), restart), (incarnation("p2"), restart)].into();
    link.publish(wanted);
    let told = node.desired().await;
    assert_eq!((told.generation, told.worker_restarts.len()), (2, 1));
    assert_eq!(
        (
            told.worker_restarts[0].generation,
            told.worker_restarts[0].release
        ),
        (3, true)
    );
    assert_eq!(
        told.worker_restarts[0].incarnation.as_ref().unwrap().pod_uid,
        "p1"
    );
}

#[tokio::test]
async fn a_daemon_of_protocol_1_has_no_worker_restarts() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    assert!(
        link.supports_worker_restarts("n1"),
        "nothing speaks against it yet"
    );
    let mut node = hub.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
    assert!(!link.supports_worker_restarts("n1"));
    let newer = pb::Hello {
        protocol_max: 2,
        ..hello(vec![])
    };
    let mut node = hub.connect("n1", newer).await.unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
    assert!(link.supports_worker_restarts("n1"));
}

#[tokio::test]
async fn a_second_stream_of_a_node_ends_the_first() {
    let hub = Hub::start().await;
    let mut first = hub.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(first.next().await, hub_message::Kind::Welcome(_)));
    let mut second = hub.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(second.next().await, hub_message::Kind::Welcome(_)));
    assert!(first.rx.message().await.unwrap().is_none());
    assert_eq!(hub.registry.connected(), 1);
}

#[tokio::test]
async fn shutting_down_drains_the_nodes_and_ends() {
    let hub = Hub::start().await;
    let mut node = hub.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
    hub.shutdown.cancel();
    assert!(matches!(node.next().await, hub_message::Kind::Drain(_)));
    assert!(node.rx.message().await.unwrap().is_none());
    drop(node);
    hub.streams.close();
    let both = async { tokio::join!(hub.server, hub.streams.wait()) };
    let (served, ()) = tokio::time::timeout(Duration::from_secs(10), both).await.unwrap();
    served.unwrap().unwrap();
}

#[tokio::test]
async fn a_replica_that_does_not_lead_says_where_the_leader_is() {
    let leader = Hub::start().await;
    let follower = Hub::follower(super::auth::GRACE, LeaderAddress::at(leader.address)).await;
    let mut node = follower.connect("n1", hello(vec![])).await.unwrap();
    let told = node.next().await;
    let address = leader.address.to_string();
    assert!(
        matches!(&told, hub_message::Kind::NotLeader(not) if not.address == address),
        "{told:?}"
    );
    assert!(node.rx.message().await.unwrap().is_none(), "that is all");
    assert_eq!(follower.registry.connected(), 0);
    // An unauthenticated client does not learn the address.
    let refused = follower.connect_as(&[], hello(vec![])).await.err().unwrap();
    assert_eq!(refused.code(), Code::Unauthenticated);

    // The leader's streams end with its term, and from then on it does not know the leader.
    let mut node = leader.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
    leader.term.cancel();
    assert!(matches!(node.next().await, hub_message::Kind::Drain(_)));
    let mut node = leader.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::NotLeader(not) if not.address.is_empty()));
    // A daemon that comes while no leader is known is welcomed as soon as this replica leads.
    let next = Hub::follower(super::auth::GRACE, LeaderAddress::unknown()).await;
    let (waiting, ()) = tokio::join!(next.connect("n1", hello(vec![])), async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        next.lead().await;
    });
    let welcomed = waiting.unwrap().next().await;
    assert!(matches!(welcomed, hub_message::Kind::Welcome(_)), "{welcomed:?}");
    follower.lead().await;
    let mut node = follower.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
}

#[tokio::test]
async fn reports_of_pods_that_are_gone_are_dropped_but_early_ones_are_kept() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    hub.says("n1", worker(pb::Phase::Running, 0, 1));
    let none: std::collections::BTreeMap<String, ()> = std::collections::BTreeMap::new();
    link.drop_gone_pods(&none, Duration::from_secs(60));
    assert_eq!(link.all_reports().len(), 1);
    link.drop_gone_pods(&none, Duration::ZERO);
    assert!(link.all_reports().is_empty());
}

#[tokio::test]
async fn of_containers_that_ended_in_a_pod_that_lives_on_the_latest_are_kept() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    for ended in 0..100_u64 {
        let state = pb::WorkerState {
            incarnation: Some(pb::Incarnation {
                pod_uid: "pod".to_owned(),
                container_id: format!("c-{ended}"),
            }),
            since_unix_nanos: i64::try_from(ended).unwrap(),
            exit: Some(pb::Exit { code: 137, signal: 9 }),
            ..worker(pb::Phase::Lost, 0, ended)
        };
        hub.says("n1", state);
    }
    let lives = std::collections::BTreeMap::from([("pod".to_owned(), ())]);
    link.drop_gone_pods(&lives, Duration::ZERO);
    let kept: Vec<i64> = link
        .all_reports()
        .iter()
        .map(|(_, report)| report.since.0)
        .collect();
    assert_eq!(kept.len(), 8);
    assert!(kept.iter().all(|since| *since >= 92), "{kept:?}");
}

#[tokio::test]
async fn a_node_that_reports_a_new_incarnation_gets_the_desired_state_again() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let mut node = hub.connect("n1", hello(vec![])).await.unwrap();
    assert!(matches!(node.next().await, hub_message::Kind::Welcome(_)));
    link.publish(published(3));
    assert_eq!(node.desired().await.generation, 3);
    let report = pb::Report {
        workers: vec![worker(pb::Phase::Fresh, 0, 1)],
        ..pb::Report::default()
    };
    node.tx
        .send(pb::NodeMessage {
            kind: Some(node_message::Kind::Report(report)),
        })
        .await
        .unwrap();
    wait_for_phase(&link, Phase::Fresh).await;
    link.publish(published(3));
    assert_eq!(node.desired().await.generation, 3);
}
