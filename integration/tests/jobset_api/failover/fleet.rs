//! Many node daemons, played by the test. Each has a stream of its own, and finds the leader as the
//! real one does. Unlike real daemons, several share a connection: handshakes would take most of
//! the test's time.

use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use lockstep_proto::node::v1::hub_message::Kind as FromHub;
use lockstep_proto::node::v1::node_hub_client::NodeHubClient;
use lockstep_proto::node::v1::node_message::Kind as ToHub;
use lockstep_proto::node::v1::{self as pb};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Request;
use tonic::transport::Channel;

use crate::platform::caller::channel;
use crate::platform::daemon::{enter, message, obey};

/// First and longest pause between attempts to connect, as in the daemon.
const PAUSE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(2500));
/// Streams of one connection: the limit of the hub.
const SHARED_BY: usize = 8;
/// How long an attempt may take.
const ATTEMPT: Duration = Duration::from_secs(15);

/// A node, and what its daemon knows of workers.
pub(super) struct Node {
    pub(super) token: String,
    pub(super) workers: Vec<pb::WorkerState>,
}

/// A node of the fleet: the state that its task and the test share.
struct Member {
    token: String,
    /// The channel to each replica.
    channels: [Channel; 2],
    workers: Mutex<Vec<pb::WorkerState>>,
    /// The highest generation that it has received.
    told: AtomicUsize,
    /// How often its worker has started.
    starts: AtomicUsize,
    changed: Notify,
}

impl Member {
    fn workers(&self) -> MutexGuard<'_, Vec<pb::WorkerState>> {
        self.workers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The addresses of the replicas, and the state that all nodes share.
struct Shared {
    hubs: [SocketAddr; 2],
    ca: String,
    stopping: Duration,
    connected: AtomicUsize,
    /// The highest epoch whose leader continued a restart, and when a node first heard of it.
    decided: Mutex<Option<(u64, Instant)>>,
}

impl Shared {
    fn channels(&self) -> [Channel; 2] {
        self.hubs.map(|hub| channel(hub, &self.ca))
    }

    fn note(&self, desired: &pb::Desired) {
        let restarts = desired.groups.iter().filter(|group| group.generation > 0);
        let Some(epoch) = restarts.map(|group| group.epoch).max() else {
            return;
        };
        let mut decided = self.decided.lock().unwrap_or_else(PoisonError::into_inner);
        if decided.is_none_or(|(known, _)| known < epoch) {
            *decided = Some((epoch, Instant::now()));
        }
    }
}

/// The nodes. Dropping this ends their tasks.
pub(super) struct Fleet {
    shared: Arc<Shared>,
    members: Vec<Arc<Member>>,
    tasks: JoinSet<()>,
}

impl Fleet {
    /// A fleet without nodes. Its workers take `stopping` to stop.
    pub(super) fn new(hubs: [SocketAddr; 2], ca: &str, stopping: Duration) -> Self {
        let shared = Shared {
            hubs,
            ca: ca.to_owned(),
            stopping,
            connected: AtomicUsize::default(),
            decided: Mutex::default(),
        };
        Self {
            shared: Arc::new(shared),
            members: Vec::new(),
            tasks: JoinSet::new(),
        }
    }

    /// Connects another node.
    pub(super) fn start(&mut self, node: Node) {
        let shares = !self.members.len().is_multiple_of(SHARED_BY);
        let last = self.members.last().filter(|_| shares);
        let channels = last.map_or_else(|| self.shared.channels(), |last| last.channels.clone());
        let member = Arc::new(Member {
            token: node.token,
            channels,
            workers: Mutex::new(node.workers),
            told: AtomicUsize::default(),
            starts: AtomicUsize::default(),
            changed: Notify::new(),
        });
        self.members.push(Arc::clone(&member));
        self.tasks.spawn(live(Arc::clone(&self.shared), member));
    }

    /// When a node first heard the latest leader continue a restart.
    pub(super) fn decided(&self) -> Option<Instant> {
        let decided = self.shared.decided.lock().unwrap_or_else(PoisonError::into_inner);
        decided.map(|(_, at)| at)
    }

    /// How often the hub has welcomed a node.
    pub(super) fn connected(&self) -> usize {
        self.shared.connected.load(Ordering::Relaxed)
    }

    /// The worker of this node exits by itself.
    pub(super) fn fail(&self, node: usize) {
        let member = &self.members[node];
        for worker in member.workers().iter_mut() {
            worker.exit = Some(pb::Exit { code: 1, signal: 0 });
            let generation = worker.generation;
            enter(worker, pb::Phase::Exited, generation);
        }
        member.changed.notify_one();
    }

    /// Fails unless the workers of all these nodes run.
    pub(super) fn all_run(&self, nodes: Range<usize>) -> Result<()> {
        for (number, member) in self.members[nodes].iter().enumerate() {
            let workers = member.workers();
            let run = workers.iter().all(|worker| worker.phase() == pb::Phase::Running);
            ensure!(run && !workers.is_empty(), "{number}: {workers:?}");
        }
        Ok(())
    }

    /// Fails if the workers of all these nodes run.
    pub(super) fn ensure_not_all_run(&self, nodes: Range<usize>) -> Result<()> {
        if self.all_run(nodes).is_ok() {
            bail!("the restarts were over too soon");
        }
        Ok(())
    }

    /// Fails unless all of these have received another generation.
    pub(super) fn told(&self, nodes: Range<usize>) -> Result<()> {
        for (number, member) in self.members[nodes].iter().enumerate() {
            ensure!(member.told.load(Ordering::Relaxed) > 0, "{number} is not told");
        }
        Ok(())
    }

    /// How often the state of each worker has changed.
    pub(super) fn revisions(&self, nodes: Range<usize>) -> Vec<u64> {
        self.each(nodes, |worker| worker.revision)
    }

    /// Which generation each worker is at.
    pub(super) fn generations(&self, nodes: Range<usize>) -> Vec<u64> {
        self.each(nodes, |worker| worker.generation)
    }

    /// How often each worker has started.
    pub(super) fn starts(&self, nodes: Range<usize>) -> Vec<usize> {
        let members = self.members[nodes].iter();
        members
            .map(|member| member.starts.load(Ordering::Relaxed))
            .collect()
    }

    fn each<T>(&self, nodes: Range<usize>, of: impl Fn(&pb::WorkerState) -> T) -> Vec<T> {
        let members = self.members[nodes].iter();
        members
            .flat_map(|member| member.workers().iter().map(&of).collect::<Vec<_>>())
            .collect()
    }
}

/// Connects again and again: to the leader if it knows of one, otherwise to either replica.
async fn live(shared: Arc<Shared>, member: Arc<Member>) {
    let mut pause = PAUSE.0;
    for attempt in 0.. {
        let mut hub = attempt % 2;
        // It follows at most two redirects, then it waits as after any failure.
        for _ in 0..3 {
            match session(&shared, &member, hub).await {
                Ended::Elsewhere(leader) => match shared.hubs.iter().position(|hub| *hub == leader) {
                    Some(leader) => hub = leader,
                    None => break,
                },
                Ended::Welcomed => {
                    pause = PAUSE.0;
                    break;
                }
                Ended::Failed => break,
            }
        }
        tokio::time::sleep(pause.mul_f64(1.0 + rand::random::<f64>())).await;
        pause = (pause * 2).min(PAUSE.1);
    }
}

enum Ended {
    Elsewhere(SocketAddr),
    Welcomed,
    Failed,
}

async fn session(shared: &Shared, member: &Member, hub: usize) -> Ended {
    let (tx, messages) = mpsc::channel(16);
    let hello = pb::Hello {
        protocol_min: 1,
        protocol_max: 3,
        snapshot: member.workers().clone(),
        ..pb::Hello::default()
    };
    let mut request = Request::new(ReceiverStream::new(messages));
    let Ok(token) = format!("Bearer {}", member.token).parse() else {
        return Ended::Failed;
    };
    request.metadata_mut().insert("authorization", token);
    let opened = tokio::time::timeout(ATTEMPT, async {
        tx.send(message(ToHub::Hello(hello))).await.ok()?;
        let mut client = NodeHubClient::new(member.channels[hub].clone());
        let mut rx = client.connect(request).await.ok()?.into_inner();
        let first = rx.message().await.ok()??.kind?;
        Some((rx, first))
    });
    let mut rx = match opened.await {
        Ok(Some((rx, FromHub::Welcome(_)))) => rx,
        Ok(Some((_, FromHub::NotLeader(leader)))) => {
            return leader.address.parse().map_or(Ended::Failed, Ended::Elsewhere);
        }
        _ => return Ended::Failed,
    };
    shared.connected.fetch_add(1, Ordering::Relaxed);
    loop {
        tokio::select! {
            next = rx.message() => match next {
                Ok(Some(pb::HubMessage { kind: Some(FromHub::Desired(desired)) })) => {
                    shared.note(&desired);
                    for group in &desired.groups {
                        follow(shared, member, group).await;
                    }
                }
                Ok(Some(_)) => continue,
                _ => return Ended::Welcomed,
            },
            () = member.changed.notified() => {}
        }
        let report = pb::Report {
            workers: member.workers().clone(),
            ..pb::Report::default()
        };
        if tx.send(message(ToHub::Report(report))).await.is_err() {
            return Ended::Welcomed;
        }
    }
}

/// Does as the leader says. Stopping takes time, and continues when the leader dies.
async fn follow(shared: &Shared, member: &Member, group: &pb::Group) {
    let generation = usize::try_from(group.generation).unwrap_or(usize::MAX);
    if member.told.fetch_max(generation, Ordering::Relaxed) < generation {
        tokio::time::sleep(shared.stopping).await;
    }
    let mut workers = member.workers();
    let running = |workers: &[pb::WorkerState]| -> Vec<(bool, u64)> {
        let all = workers.iter();
        all.map(|worker| (worker.phase() == pb::Phase::Running, worker.generation))
            .collect()
    };
    let before = running(&workers);
    obey(&mut workers, group);
    let started = running(&workers)
        .into_iter()
        .zip(before)
        .filter(|(now, before)| now.0 && now != before);
    member.starts.fetch_add(started.count(), Ordering::Relaxed);
}
