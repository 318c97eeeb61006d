//! Against a stand-in for the hub, over TLS on loopback.

use std::net::SocketAddr;
use std::time::Instant;

use lockstep_proto::node::v1 as wire;
use lockstep_proto::node::v1::hub_message::Kind as FromHub;
use lockstep_proto::node::v1::node_hub_server::{NodeHub, NodeHubServer};
use lockstep_proto::node::v1::node_message::Kind as ToHub;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::*;
use crate::testing::{NoHost, pod};
use crate::worker::driver::Driver;
use crate::worker::facts::Input;
use crate::worker::state::Table;
use crate::worker::types::{AgentPhase, AgentState, Epoch, Generation, Heartbeat, LinkId, UnixNanos};

mod recorded;

const NAME: &str = "lockstep-control-plane";

/// One stream, as the hub sees it.
struct Stream {
    token: String,
    incoming: Streaming<wire::NodeMessage>,
    outgoing: mpsc::Sender<Result<wire::HubMessage, Status>>,
}

impl Stream {
    async fn next(&mut self) -> ToHub {
        self.incoming.message().await.unwrap().unwrap().kind.unwrap()
    }

    async fn hello(&mut self) -> wire::Hello {
        match self.next().await {
            ToHub::Hello(hello) => hello,
            other => panic!("not a Hello: {other:?}"),
        }
    }

    async fn report(&mut self) -> Vec<wire::WorkerState> {
        match self.next().await {
            ToHub::Report(report) => report.workers,
            other => panic!("not a Report: {other:?}"),
        }
    }

    async fn send(&self, kind: FromHub) {
        let message = wire::HubMessage { kind: Some(kind) };
        self.outgoing.send(Ok(message)).await.unwrap();
    }

    /// Takes the Hello and accepts the stream.
    async fn welcome(&mut self) -> wire::Hello {
        self.welcome_to(1).await
    }

    /// The same with this version of the protocol.
    async fn welcome_to(&mut self, protocol: u32) -> wire::Hello {
        let hello = self.hello().await;
        let welcome = wire::Welcome { protocol, epoch: 3 };
        self.send(FromHub::Welcome(welcome)).await;
        hello
    }
}

struct Service(mpsc::Sender<Stream>);

#[tonic::async_trait]
impl NodeHub for Service {
    type ConnectStream = ReceiverStream<Result<wire::HubMessage, Status>>;

    async fn connect(
        &self,
        request: Request<Streaming<wire::NodeMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let header = |name: &str| {
            request
                .metadata()
                .get(name)
                .and_then(|value| value.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        let (outgoing, messages) = mpsc::channel(16);
        let stream = Stream {
            token: header("authorization"),
            incoming: request.into_inner(),
            outgoing,
        };
        self.0
            .send(stream)
            .await
            .map_err(|_| Status::unavailable("the test is over"))?;
        Ok(Response::new(ReceiverStream::new(messages)))
    }
}

/// One replica.
struct FakeHub {
    address: SocketAddr,
    streams: mpsc::Receiver<Stream>,
    server: tokio::task::JoinHandle<()>,
}

impl FakeHub {
    async fn start(pki: &Pki) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        Self::on(listener, pki)
    }

    fn on(listener: TcpListener, pki: &Pki) -> Self {
        let address = listener.local_addr().unwrap();
        let (sender, streams) = mpsc::channel(16);
        let tls = ServerTlsConfig::new().identity(pki.identity.clone());
        let server = Server::builder()
            .tls_config(tls)
            .unwrap()
            .add_service(NodeHubServer::new(Service(sender)))
            .serve_with_incoming(TcpListenerStream::new(listener));
        let server = tokio::spawn(async move { drop(server.await) });
        Self {
            address,
            streams,
            server,
        }
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    async fn stream(&mut self) -> Stream {
        self.streams.recv().await.unwrap()
    }
}

struct Pki {
    ca: String,
    identity: Identity,
}

impl Pki {
    fn new(name: &str) -> Self {
        Self::until(name, 4096)
    }

    /// Its CA is valid until the beginning of `year`.
    fn until(name: &str, year: i32) -> Self {
        let ca_key = rcgen::KeyPair::generate().unwrap();
        let mut ca = rcgen::CertificateParams::default();
        ca.not_after = rcgen::date_time_ymd(year, 1, 1);
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let ca_cert = ca.self_signed(&ca_key).unwrap();
        let issuer = rcgen::Issuer::new(ca, ca_key);
        let key = rcgen::KeyPair::generate().unwrap();
        let cert = rcgen::CertificateParams::new([name.to_owned()])
            .unwrap()
            .signed_by(&key, &issuer)
            .unwrap();
        Self {
            ca: ca_cert.pem(),
            identity: Identity::from_pem(cert.pem(), key.serialize_pem()),
        }
    }
}

/// The daemon's side: a table with one pod, and the link.
struct Daemon {
    dir: tempfile::TempDir,
    workers: Handle,
    link: tokio::task::JoinHandle<Result<(), Closed>>,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.link.abort();
    }
}

const REFUSED: Duration = Duration::from_millis(300);

impl Daemon {
    async fn start(address: String, ca: Option<&str>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "secret\n").unwrap();
        if let Some(ca) = ca {
            std::fs::write(dir.path().join("ca.crt"), ca).unwrap();
        }
        let hub = Hub {
            address,
            ca_file: dir.path().join("ca.crt"),
            server_name: NAME.to_owned(),
            token_file: dir.path().join("token"),
            boot_id: "boot".to_owned(),
        };
        let (driver, workers) = Driver::new(Table::new(0));
        tokio::spawn(driver.run(NoHost));
        let pod = pod("p");
        workers.tell(Input::PodStarted("s".into(), pod)).await.unwrap();
        let linked = workers.clone();
        let link = tokio::spawn(async move { serve_with(&hub, &linked, REFUSED).await });
        Self { dir, workers, link }
    }

    async fn register(&self, container: &str) {
        let registered = Input::Registered {
            pod: "p".into(),
            id: container.into(),
            name: "worker".into(),
            link: LinkId(1),
            pid: 1,
        };
        self.workers.tell(registered).await.unwrap();
    }

    async fn state(&self, container: &str, phase: AgentPhase, revision: u64) {
        let state = agent_state(phase, revision);
        let input = Input::State(container.into(), LinkId(1), state);
        self.workers.tell(input).await.unwrap();
    }
}

fn agent_state(phase: AgentPhase, revision: u64) -> AgentState {
    AgentState {
        phase,
        generation: Generation(1),
        epoch: Epoch(0),
        counted_restarts: 0,
        revision,
        since: UnixNanos(i64::try_from(revision).unwrap()),
        detail: String::new(),
        needs_host_kill: false,
        host_kill_before: None,
        heartbeat: Heartbeat::Well,
        starts: None,
        standbys: None,
        progress: crate::worker::types::Progress::default(),
    }
}

#[tokio::test]
async fn the_health_of_the_runtime_is_in_the_hello_and_its_changes_are_reported() {
    use wire::access::State;
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    let mut stream = hub.stream().await;
    let health = stream.welcome().await.health.unwrap();
    assert_eq!(health.cri.unwrap().state(), State::Unspecified);
    let next = async |stream: &mut Stream| match stream.next().await {
        ToHub::Report(report) => report.health.unwrap(),
        other => panic!("not a Report: {other:?}"),
    };
    daemon.workers.health().cri(Ok(()));
    let health = next(&mut stream).await;
    assert_eq!(health.cri.clone().unwrap().state(), State::Well);
    assert!(health.cri.unwrap().since_unix_nanos > 0);
    daemon.workers.health().nri(Err(&"no such socket"));
    let health = next(&mut stream).await;
    let nri = health.nri.unwrap();
    assert_eq!(
        (nri.state(), nri.detail.as_str()),
        (State::Away, "no such socket")
    );
    assert_eq!(health.cri.unwrap().state(), State::Well);
    // A new connection reports it again.
    stream.send(FromHub::Drain(wire::Drain {})).await;
    let mut stream = hub.stream().await;
    let health = stream.welcome().await.health.unwrap();
    assert_eq!(health.nri.unwrap().detail, "no such socket");
    // Reports about workers do not carry it.
    daemon.register("c").await;
    daemon.state("c", AgentPhase::Running, 1).await;
    match stream.next().await {
        ToHub::Report(report) => assert_eq!((report.workers.len(), report.health), (1, None)),
        other => panic!("not a Report: {other:?}"),
    }
}

#[tokio::test]
async fn a_hub_whose_ca_has_expired_gets_nothing_until_the_ca_is_renewed() {
    let (expired, good) = (Pki::until(NAME, 2020), Pki::new(NAME));
    let mut hub = FakeHub::start(&good).await;
    let daemon = Daemon::start(hub.url(), Some(&expired.ca)).await;
    let ca_file = daemon.dir.path().join("ca.crt");
    let known = Hub {
        address: hub.url(),
        ca_file: ca_file.clone(),
        server_name: NAME.to_owned(),
        token_file: daemon.dir.path().join("token"),
        boot_id: "boot".to_owned(),
    };
    let refused = connect::channel(&known, &known.address).await.err().unwrap();
    assert!(
        matches!(&refused, SessionError::Expired(file) if *file == ca_file),
        "{refused}"
    );
    assert!(refused.to_string().contains("have expired"), "{refused}");
    assert!(hub.streams.try_recv().is_err(), "the daemon contacted it");
    // The bundle of both, as while the CA is being replaced.
    std::fs::write(&ca_file, format!("{}{}", expired.ca, good.ca)).unwrap();
    hub.stream().await.welcome().await;
    drop(daemon);
}

#[tokio::test]
async fn a_stream_carries_credentials_snapshot_reports_and_orders() {
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    let mut stream = hub.stream().await;
    assert_eq!(stream.token, "Bearer secret");
    let hello = stream.welcome().await;
    assert_eq!(
        (hello.protocol_min, hello.protocol_max, hello.boot_id.as_str()),
        (1, 3, "boot")
    );
    assert!(hello.snapshot.is_empty());

    daemon.register("c").await;
    daemon.state("c", AgentPhase::Running, 1).await;
    let reported = stream.report().await;
    assert_eq!(
        (reported[0].phase(), reported[0].group_uid.as_str()),
        (wire::Phase::Running, "g")
    );

    let registered = Input::Registered {
        pod: "p".into(),
        id: "c".into(),
        name: "worker".into(),
        link: LinkId(2),
        pid: 1,
    };
    let mut targets = daemon
        .workers
        .linked(registered, LinkId(2), String::new())
        .await
        .unwrap();
    let group = wire::Group {
        uid: "g".into(),
        epoch: 3,
        generation: 2,
        ..wire::Group::default()
    };
    let scoped = wire::Group {
        scope: 99,
        generation: 5,
        ..group.clone()
    };
    let groups = vec![group, scoped];
    stream.send(FromHub::Desired(wire::Desired { groups })).await;
    targets.changed().await.unwrap();
    let generation = targets.borrow().as_ref().unwrap().generation;
    assert_eq!(
        generation,
        Generation(2),
        "a scope of a later version is not obeyed"
    );

    daemon.workers.health().agent_refused();
    stream.send(FromHub::Ping(wire::Ping { nonce: 42 })).await;
    assert!(matches!(
        stream.next().await,
        ToHub::Pong(wire::Pong {
            nonce: 42,
            refused_agents: 1
        })
    ));
}

#[tokio::test]
async fn a_snapshot_replaces_what_was_missed() {
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    hub.stream().await.welcome().await;
    // The stream has ended: later reports have nowhere to go.
    daemon.register("c").await;
    for revision in 1..500 {
        daemon.state("c", AgentPhase::Running, revision).await;
    }
    let mut stream = hub.stream().await;
    let hello = stream.welcome().await;
    daemon.state("c", AgentPhase::Parked, 1000).await;
    // How much of the above came before the snapshot depends on timing; that the last comes last
    // does not.
    let mut last = hello.snapshot.first().map_or(0, |state| state.since_unix_nanos);
    while last != 1000 {
        let reports = stream.report().await;
        assert!(reports[0].since_unix_nanos > last);
        last = reports[0].since_unix_nanos;
    }
}

/// The hub takes messages of 4 MiB, as this one does.
#[tokio::test]
async fn a_node_with_many_workers_and_long_details_is_welcome() {
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    let mut first = hub.stream().await;
    first.welcome().await;
    // Ids are shorter here than in a cluster, so this many are as large as a few thousand there.
    const WORKERS: usize = 30_000;
    for number in 0..WORKERS {
        let container = format!("container-{number:060}");
        daemon.register(&container).await;
        let state = AgentState {
            detail: "x".repeat(1024),
            ..agent_state(AgentPhase::Running, 1)
        };
        let input = Input::State(container.as_str().into(), LinkId(1), state);
        daemon.workers.tell(input).await.unwrap();
    }
    drop(first);
    let mut stream = hub.stream().await;
    let hello = stream.welcome().await;
    let id = |state: &wire::WorkerState| state.incarnation.clone().unwrap().container_id;
    let mut reported: std::collections::BTreeSet<String> = hello.snapshot.iter().map(id).collect();
    assert!(
        reported.len() < WORKERS && !reported.is_empty(),
        "{}",
        reported.len()
    );
    while reported.len() < WORKERS {
        reported.extend(stream.report().await.iter().map(id));
    }
}

#[tokio::test]
async fn a_slow_hub_gets_the_latest_state_only() {
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    let mut stream = hub.stream().await;
    stream.welcome().await;
    daemon.register("c").await;
    const LAST: u64 = 20_000;
    for revision in 1..=LAST {
        daemon.state("c", AgentPhase::Running, revision).await;
    }
    let mut received = 0;
    loop {
        received += 1;
        if stream.report().await[0].since_unix_nanos == i64::try_from(LAST).unwrap() {
            break;
        }
    }
    assert!(received < LAST / 2, "{received} reports");
}

#[tokio::test]
async fn streams_that_end_after_their_welcome_back_off() {
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let _daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    hub.stream().await.welcome().await;
    let began = Instant::now();
    for _ in 0..4 {
        hub.stream().await.welcome().await;
    }
    // 50, 100, 200 and 400 ms, and jitter.
    assert!(
        began.elapsed() >= Duration::from_millis(750),
        "{:?}",
        began.elapsed()
    );
}

#[tokio::test]
async fn the_leader_is_followed() {
    let pki = Pki::new(NAME);
    let mut follower = FakeHub::start(&pki).await;
    let mut leader = FakeHub::start(&pki).await;
    let _daemon = Daemon::start(follower.url(), Some(&pki.ca)).await;
    let mut stream = follower.stream().await;
    stream.hello().await;
    let address = leader.address.to_string();
    stream.send(FromHub::NotLeader(wire::NotLeader { address })).await;
    leader.stream().await.welcome().await;
    // Once the leader is gone, any replica may know the next.
    leader.server.abort();
    drop(leader);
    follower.stream().await.welcome().await;
}

#[tokio::test]
async fn another_protocol_is_retried_slowly() {
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let _daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    let mut stream = hub.stream().await;
    stream.hello().await;
    let begun = Instant::now();
    let refusal = Status::failed_precondition("protocol 1 is too old");
    stream.outgoing.send(Err(refusal)).await.unwrap();

    let mut stream = hub.stream().await;
    assert!(begun.elapsed() >= REFUSED);
    stream.hello().await;
    let begun = Instant::now();
    let unknown = wire::Welcome {
        protocol: 9,
        epoch: 1,
    };
    stream.send(FromHub::Welcome(unknown)).await;
    hub.stream().await.welcome().await;
    assert!(begun.elapsed() >= REFUSED);
}

#[tokio::test]
async fn only_the_right_name_is_trusted_and_the_ca_may_come_late() {
    let impostor_pki = Pki::new("somebody-else");
    let mut impostor = FakeHub::start(&impostor_pki).await;
    let daemon = Daemon::start(impostor.url(), None).await;
    std::fs::write(daemon.dir.path().join("ca.crt"), &impostor_pki.ca).unwrap();
    let refused = tokio::time::timeout(Duration::from_millis(700), impostor.streams.recv()).await;
    assert!(refused.is_err(), "a stream to a hub of another name");

    // The same address, now with the right name and another CA.
    let address = impostor.address;
    impostor.server.abort();
    drop(impostor);
    let pki = Pki::new(NAME);
    let listener = loop {
        match TcpListener::bind(address).await {
            Ok(listener) => break listener,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    let mut hub = FakeHub::on(listener, &pki);
    std::fs::write(daemon.dir.path().join("ca.crt"), &pki.ca).unwrap();
    hub.stream().await.welcome().await;
}

#[tokio::test]
async fn a_renewed_token_is_sent_on_the_open_stream() {
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    let token = daemon.dir.path().join("token");
    let mut stream = hub.stream().await;
    // Before the Welcome, so that the first read finds it.
    std::fs::write(&token, "second\n").unwrap();
    stream.welcome_to(3).await;
    match stream.next().await {
        ToHub::Credentials(credentials) => assert_eq!(credentials.token, "second"),
        other => panic!("{other:?}"),
    }
    drop(stream);
    // An older hub would not know the message.
    let mut stream = hub.stream().await;
    assert_eq!(stream.token, "Bearer second");
    std::fs::write(&token, "third\n").unwrap();
    stream.welcome_to(2).await;
    daemon.register("c").await;
    daemon.state("c", AgentPhase::Running, 1).await;
    stream.report().await;
}

#[tokio::test]
async fn a_drained_stream_moves() {
    let pki = Pki::new(NAME);
    let mut hub = FakeHub::start(&pki).await;
    let _daemon = Daemon::start(hub.url(), Some(&pki.ca)).await;
    let mut stream = hub.stream().await;
    stream.welcome().await;
    stream.send(FromHub::Drain(wire::Drain {})).await;
    hub.stream().await.welcome().await;
}
