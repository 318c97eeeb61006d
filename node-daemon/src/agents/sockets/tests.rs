use std::sync::atomic::{AtomicUsize, Ordering};

use futures::{SinkExt as _, StreamExt as _};
use lockstep_proto::agent::v1 as wire;
use lockstep_proto::agent::v1::agent_message::Kind;
use prost::Message as _;
use tokio::net::UnixStream;
use tokio_util::codec::{Framed, LengthDelimitedCodec};

use super::*;
use crate::agents::peer::{Peer, PeerCheck, PeerError};
use crate::testing::{self, NoHost, pod};
use crate::worker::driver::{Driver, Handle};
use crate::worker::facts::Input;
use crate::worker::state::Table;
use crate::worker::types::{AgentPhase, ContainerId, Desired, Exit, Phase, WorkerState};

mod recorded;

/// How often a peer was checked that claims to be container `forged again`.
static FORGED: AtomicUsize = AtomicUsize::new(0);

/// Accepts every peer except one that claims to be container `forged`.
struct Trusting;

impl PeerCheck for Trusting {
    fn check(&self, peer: &Peer, container: &ContainerId, _: &PodUid) -> Result<i32, PeerError> {
        if container.as_str() == "forged again" {
            FORGED.fetch_add(1, Ordering::Relaxed);
            return Err(PeerError::Invisible);
        }
        if container.as_str() == "forged" {
            return Err(PeerError::Invisible);
        }
        Ok(peer.pid().unwrap_or(0))
    }

    fn container(&self, _: &Peer) -> Result<ContainerId, PeerError> {
        Ok("found".into())
    }
}

struct Daemon {
    dir: tempfile::TempDir,
    workers: Handle,
    sockets: Sockets,
}

impl Daemon {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (workers, sockets) = Self::open(dir.path());
        Self {
            dir,
            workers,
            sockets,
        }
    }

    fn open(dir: &Path) -> (Handle, Sockets) {
        let (driver, workers) = Driver::new(Table::new(0));
        tokio::spawn(driver.run(NoHost));
        let context = Arc::new(Context::new(workers.clone(), Box::new(Trusting)));
        let sockets = Sockets::open(dir, context).unwrap();
        (workers, sockets)
    }

    /// A new process on the same directory.
    fn restart(&mut self) {
        let (workers, sockets) = Self::open(self.dir.path());
        self.workers = workers;
        self.sockets = sockets;
    }

    fn socket(&self) -> PathBuf {
        self.socket_of("p")
    }

    fn socket_of(&self, pod: &str) -> PathBuf {
        self.dir.path().join(format!("pods/{pod}/agent.sock"))
    }

    async fn with_pod(self) -> Self {
        self.add_pod("p").await;
        self
    }

    async fn add_pod(&self, uid: &str) {
        let pod = pod(uid);
        self.workers
            .tell(Input::PodStarted(format!("sandbox of {uid}").into(), pod))
            .await
            .unwrap();
        self.sockets.ensure(&uid.into()).unwrap();
    }

    /// The next reports.
    async fn reports(&self) -> Vec<WorkerState> {
        self.workers.outbox().reader().next(usize::MAX).await.unwrap()
    }

    async fn phase(&self) -> Phase {
        self.reports().await.pop().unwrap().phase
    }

    async fn desire(&self, generation: u64) {
        let desired = Desired {
            counted_restarts: 0,
            release: true,
            grace_ms: 0,
            ..testing::desired(1, generation)
        };
        self.workers.tell(Input::Desired(vec![desired])).await.unwrap();
    }
}

struct Agent(Framed<UnixStream, LengthDelimitedCodec>);

impl Agent {
    async fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).await.unwrap();
        Self(Framed::new(stream, LengthDelimitedCodec::new()))
    }

    async fn registered(path: &Path, container: &str) -> Self {
        let mut agent = Self::connect(path).await;
        let register = wire::Register {
            protocol: 1,
            container: "worker".into(),
            container_id: container.into(),
            ..wire::Register::default()
        };
        agent.send(Kind::Register(register)).await;
        agent
    }

    async fn frame(&mut self, bytes: Vec<u8>) -> io::Result<()> {
        self.0.send(bytes::Bytes::from(bytes)).await
    }

    async fn send(&mut self, kind: Kind) {
        let message = wire::AgentMessage { kind: Some(kind) };
        self.frame(message.encode_to_vec()).await.unwrap();
    }

    async fn state(&mut self, phase: wire::Phase, generation: u64, revision: u64) {
        let state = wire::State {
            phase: phase.into(),
            generation,
            revision,
            ..wire::State::default()
        };
        self.send(Kind::State(state)).await;
    }

    async fn target(&mut self) -> wire::Target {
        let frame = self.0.next().await.unwrap().unwrap();
        wire::Target::decode(frame).unwrap()
    }

    async fn closed(&mut self) {
        // A reset counts as an end.
        assert!(!matches!(self.0.next().await, Some(Ok(_))));
    }
}

#[tokio::test]
async fn states_go_up_and_targets_come_down() {
    let daemon = Daemon::start().with_pod().await;
    let mut agent = Agent::registered(&daemon.socket(), "c").await;
    agent.state(wire::Phase::Running, 1, 1).await;
    assert_eq!(daemon.phase().await, Phase::Agent(AgentPhase::Running));
    daemon.desire(2).await;
    assert_eq!(agent.target().await.generation, 2);
    drop(agent);
    assert_eq!(daemon.phase().await, Phase::Unlinked(None));
}

#[tokio::test]
async fn the_newest_target_wins_and_is_sent_on_registration() {
    let daemon = Daemon::start().with_pod().await;
    daemon.desire(2).await;
    daemon.desire(3).await;
    let mut agent = Agent::registered(&daemon.socket(), "c").await;
    assert_eq!(agent.target().await.generation, 3);
}

#[tokio::test]
async fn a_second_connection_takes_over() {
    let daemon = Daemon::start().with_pod().await;
    let mut first = Agent::registered(&daemon.socket(), "c").await;
    first.state(wire::Phase::Running, 1, 1).await;
    daemon.reports().await;
    let mut second = Agent::registered(&daemon.socket(), "c").await;
    first.closed().await;
    second.state(wire::Phase::Parked, 2, 2).await;
    assert_eq!(daemon.phase().await, Phase::Agent(AgentPhase::Parked));
}

#[tokio::test]
async fn agents_find_a_restarted_daemon() {
    let mut daemon = Daemon::start().with_pod().await;
    let mut agent = Agent::registered(&daemon.socket(), "c").await;
    agent.state(wire::Phase::Running, 1, 1).await;
    daemon.reports().await;
    daemon.restart();
    agent.closed().await;
    let daemon = daemon.with_pod().await;
    let mut agent = Agent::registered(&daemon.socket(), "c").await;
    agent.state(wire::Phase::Running, 1, 1).await;
    assert_eq!(daemon.phase().await, Phase::Agent(AgentPhase::Running));
}

#[tokio::test]
async fn a_peer_that_is_not_the_agent_is_refused() {
    let daemon = Daemon::start().with_pod().await;
    Agent::registered(&daemon.socket(), "forged").await.closed().await;

    let mut eager = Agent::connect(&daemon.socket()).await;
    eager.state(wire::Phase::Running, 1, 1).await;
    eager.closed().await;

    let mut newer = Agent::connect(&daemon.socket()).await;
    let register = wire::Register {
        protocol: 2,
        ..wire::Register::default()
    };
    newer.send(Kind::Register(register)).await;
    newer.closed().await;
    assert!(daemon.workers.snapshot().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_peer_for_a_container_of_another_pod_is_refused_and_its_own_agent_stays_linked() {
    let daemon = Daemon::start().with_pod().await;
    daemon.add_pod("q").await;
    let mut agent = Agent::registered(&daemon.socket(), "c").await;
    agent.state(wire::Phase::Running, 1, 1).await;
    daemon.reports().await;
    let mut forged = Agent::registered(&daemon.socket_of("q"), "c").await;
    // It may be closed already.
    let state = wire::State {
        phase: wire::Phase::Parked.into(),
        generation: 9,
        revision: 9,
        ..wire::State::default()
    };
    let kind = Some(Kind::State(state));
    drop(forged.frame(wire::AgentMessage { kind }.encode_to_vec()).await);
    forged.closed().await;
    // Its reports and its targets still go through its own agent.
    daemon.desire(2).await;
    assert_eq!(agent.target().await.generation, 2);
    agent.state(wire::Phase::Parked, 2, 2).await;
    let reported = daemon.reports().await.pop().unwrap();
    assert_eq!(
        (
            reported.phase,
            reported.generation.0,
            reported.incarnation.pod.as_str()
        ),
        (Phase::Agent(AgentPhase::Parked), 2, "p")
    );
}

#[tokio::test]
async fn a_peer_that_keeps_being_refused_is_rarely_checked_and_delays_no_others() {
    let daemon = Daemon::start().with_pod().await;
    daemon.add_pod("q").await;
    let before = FORGED.load(Ordering::Relaxed);
    let began = std::time::Instant::now();
    for _ in 0..4 * MAX_CONNECTIONS {
        let mut forged = Agent::connect(&daemon.socket()).await;
        let register = wire::Register {
            protocol: 1,
            container: "worker".into(),
            container_id: "forged again".into(),
            ..wire::Register::default()
        };
        let kind = Some(Kind::Register(register));
        // Beyond the places it is closed at once.
        drop(forged.frame(wire::AgentMessage { kind }.encode_to_vec()).await);
        forged.closed().await;
    }
    let seconds = usize::try_from(began.elapsed().as_secs()).unwrap();
    let looked = FORGED.load(Ordering::Relaxed) - before;
    assert!(
        looked >= MAX_CONNECTIONS && looked <= MAX_CONNECTIONS * (1 + seconds),
        "{looked}"
    );
    let mut other = Agent::registered(&daemon.socket_of("q"), "c").await;
    other.state(wire::Phase::Running, 1, 1).await;
    assert_eq!(daemon.phase().await, Phase::Agent(AgentPhase::Running));
    // Its own agent gets in when they are gone.
    daemon.desire(3).await;
    let own = async {
        loop {
            let mut agent = Agent::connect(&daemon.socket()).await;
            let register = wire::Register {
                protocol: 1,
                container: "worker".into(),
                container_id: "d".into(),
                ..wire::Register::default()
            };
            let kind = Some(Kind::Register(register));
            drop(agent.frame(wire::AgentMessage { kind }.encode_to_vec()).await);
            if let Some(Ok(frame)) = agent.0.next().await {
                return wire::Target::decode(frame).unwrap().generation;
            }
        }
    };
    let target = tokio::time::timeout(Duration::from_secs(10), own).await;
    assert_eq!(target.unwrap(), 3);
}

#[tokio::test]
async fn the_container_of_an_agent_that_does_not_know_it_is_found_by_its_process() {
    let daemon = Daemon::start().with_pod().await;
    let mut agent = Agent::registered(&daemon.socket(), "").await;
    let state = wire::State {
        phase: wire::Phase::Fresh.into(),
        revision: 1,
        ..wire::State::default()
    };
    agent.send(Kind::State(state)).await;
    let container = daemon.reports().await.pop().unwrap().incarnation.container;
    assert_eq!(container.as_str(), "found");
}

#[tokio::test]
async fn garbage_and_endless_frames_end_the_connection() {
    let daemon = Daemon::start().with_pod().await;
    let mut garbage = Agent::connect(&daemon.socket()).await;
    garbage.frame(vec![0xff; 100]).await.unwrap();
    garbage.closed().await;

    let mut endless = Agent::connect(&daemon.socket()).await;
    endless.0.codec_mut().set_max_frame_length(1 << 20);
    // The daemon may close before it has read everything.
    drop(endless.frame(vec![0; 65 * 1024]).await);
    endless.closed().await;
}

#[tokio::test]
async fn a_pod_that_uses_all_its_connections_keeps_out_no_other_pods_agent() {
    let daemon = Daemon::start().with_pod().await;
    daemon.add_pod("q").await;
    let mut crowd = Vec::new();
    for _ in 0..MAX_CONNECTIONS {
        crowd.push(Agent::connect(&daemon.socket()).await);
    }
    Agent::connect(&daemon.socket()).await.closed().await;
    let mut other = Agent::registered(&daemon.socket_of("q"), "c").await;
    other.state(wire::Phase::Running, 1, 1).await;
    assert_eq!(daemon.phase().await, Phase::Agent(AgentPhase::Running));
    // Its own agent keeps trying, and gets in when there is room.
    drop(crowd);
    loop {
        let mut agent = Agent::connect(&daemon.socket()).await;
        let answer = tokio::time::timeout(Duration::from_millis(50), agent.0.next()).await;
        if answer.is_err() {
            break;
        }
    }
}

#[tokio::test]
async fn directories_follow_the_pods() {
    let daemon = Daemon::start().with_pod().await;
    let mode = |path: PathBuf| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(daemon.dir.path().join("pods/p")), 0o711);
    assert_eq!(mode(daemon.socket()), 0o666);
    daemon.sockets.ensure(&"q".into()).unwrap();
    daemon.sockets.retain(&BTreeSet::from(["q".into()]));
    assert!(!daemon.dir.path().join("pods/p").exists());
    assert!(daemon.dir.path().join("pods/q/agent.sock").exists());
    for bad in ["", "..", "a/b"] {
        assert!(matches!(
            daemon.sockets.ensure(&bad.into()),
            Err(SocketError::BadUid(_))
        ));
    }
}

#[tokio::test]
async fn listings_repair_what_nri_misses() {
    let daemon = Daemon::start();
    let pods = |uids: &[&str]| uids.iter().map(|uid| PodUid::from(*uid)).collect::<BTreeSet<_>>();
    // A socket that could not be made at first is made with the next listing.
    let dir = daemon.dir.path().join("pods");
    fs::write(dir.join("p"), "in the way").unwrap();
    assert!(daemon.sockets.ensure(&"p".into()).is_err());
    fs::remove_file(dir.join("p")).unwrap();
    daemon.sockets.listed(&pods(&["p"]));
    UnixStream::connect(daemon.socket()).await.unwrap();

    // A pod that is missing once may be about to appear; if it is missing twice, it is gone.
    daemon.sockets.listed(&pods(&[]));
    daemon.sockets.listed(&pods(&["p"]));
    daemon.sockets.listed(&pods(&[]));
    UnixStream::connect(daemon.socket()).await.unwrap();
    daemon.sockets.listed(&pods(&[]));
    assert!(!dir.join("p").exists());
}
