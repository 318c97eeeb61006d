//! A node daemon and its agents, played by the test: they do as the hub says.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use lockstep_api::labels;
use lockstep_proto::node::v1::hub_message::Kind as FromHub;
use lockstep_proto::node::v1::node_hub_client::NodeHubClient;
use lockstep_proto::node::v1::node_message::Kind as ToHub;
use lockstep_proto::node::v1::{self as pb};
use tokio::sync::{Mutex, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Streaming};

use super::caller::channel;
use crate::identity::{AUDIENCE, Account};
use crate::scene::Scene;

/// The node of this daemon.
pub(crate) const NODE: &str = "node-of-the-test";

/// What happens to a worker by itself.
enum Fate {
    Exits(usize, i32),
    Hangs(usize),
}

/// The channel to the task that plays the daemon. The task ends when this is dropped.
pub(crate) struct Daemon {
    fates: mpsc::Sender<Fate>,
    /// Their current states.
    workers: Arc<Mutex<Vec<pb::WorkerState>>>,
}

impl Daemon {
    /// Connects to the hub, with a fresh agent in each of the pods.
    pub(crate) async fn connect(
        scene: &Scene,
        hub: SocketAddr,
        ca: &str,
        group: &str,
        pods: &[Pod],
    ) -> Result<Self> {
        let mut workers: Vec<pb::WorkerState> = pods.iter().map(|pod| fresh(group, pod)).collect();
        workers.sort_by(|a, b| (&a.job, a.completion_index).cmp(&(&b.job, b.completion_index)));
        Self::with(scene, hub, ca, workers).await
    }

    /// Connects to another replica, with the agents as they are.
    pub(crate) async fn again(&self, scene: &Scene, hub: SocketAddr, ca: &str) -> Result<Self> {
        let workers = self.workers.lock().await.clone();
        Self::with(scene, hub, ca, workers).await
    }

    async fn with(scene: &Scene, hub: SocketAddr, ca: &str, workers: Vec<pb::WorkerState>) -> Result<Self> {
        let token = Account::of_daemons(scene).await?.token_on(NODE, AUDIENCE).await?;
        let (tx, messages) = mpsc::channel(16);
        let hello = pb::Hello {
            protocol_min: 1,
            protocol_max: 2,
            daemon_version: "9.9.9".to_owned(),
            snapshot: workers.clone(),
            health: Some(pb::Health {
                cri: Some(access(pb::access::State::Well, "")),
                nri: Some(access(pb::access::State::Away, "no socket")),
            }),
            ..pb::Hello::default()
        };
        tx.send(message(ToHub::Hello(hello))).await?;
        let mut request = Request::new(ReceiverStream::new(messages));
        let metadata = request.metadata_mut();
        metadata.insert("authorization", format!("Bearer {token}").parse()?);
        let rx = NodeHubClient::new(channel(hub, ca))
            .connect(request)
            .await?
            .into_inner();
        let (fates, inbox) = mpsc::channel(16);
        let shared = Arc::new(Mutex::new(workers.clone()));
        let node = Node {
            workers,
            shared: Arc::clone(&shared),
            tx,
        };
        tokio::spawn(node.play(rx, inbox));
        Ok(Self {
            fates,
            workers: shared,
        })
    }

    /// The worker exits with this code.
    pub(crate) async fn exit(&self, worker: usize, code: i32) -> Result<()> {
        self.fates
            .send(Fate::Exits(worker, code))
            .await
            .context("the daemon has ended")
    }

    /// The worker stops sending heartbeats.
    pub(crate) async fn hang(&self, worker: usize) -> Result<()> {
        self.fates
            .send(Fate::Hangs(worker))
            .await
            .context("the daemon has ended")
    }
}

fn access(state: pb::access::State, detail: &str) -> pb::Access {
    pb::Access {
        state: state.into(),
        since_unix_nanos: 1_700_000_000_000_000_000,
        detail: detail.to_owned(),
    }
}

struct Node {
    workers: Vec<pb::WorkerState>,
    shared: Arc<Mutex<Vec<pb::WorkerState>>>,
    tx: mpsc::Sender<pb::NodeMessage>,
}

impl Node {
    async fn play(mut self, mut rx: Streaming<pb::HubMessage>, mut inbox: mpsc::Receiver<Fate>) {
        loop {
            tokio::select! {
                message = rx.message() => match message {
                    Ok(Some(pb::HubMessage { kind: Some(FromHub::Desired(desired)) })) => {
                        for group in &desired.groups {
                            obey(&mut self.workers, group);
                        }
                    }
                    Ok(Some(_)) => {}
                    _ => return,
                },
                fate = inbox.recv() => match fate {
                    Some(Fate::Exits(worker, code)) => {
                        let worker = &mut self.workers[worker];
                        worker.exit = Some(pb::Exit { code, signal: 0 });
                        enter(worker, pb::Phase::Exited, worker.generation);
                    }
                    Some(Fate::Hangs(worker)) => {
                        let worker = &mut self.workers[worker];
                        enter(worker, pb::Phase::Running, worker.generation);
                        worker.heartbeat = pb::Heartbeat::Missed.into();
                    }
                    None => return,
                },
            }
            self.shared.lock().await.clone_from(&self.workers);
            let report = pb::Report {
                workers: self.workers.clone(),
                ..pb::Report::default()
            };
            if self.tx.send(message(ToHub::Report(report))).await.is_err() {
                return;
            }
        }
    }
}

/// Applies the hub's orders to the workers of a group at once.
pub(crate) fn obey(workers: &mut [pb::WorkerState], desired: &pb::Group) {
    for worker in workers
        .iter_mut()
        .filter(|worker| worker.group_uid == desired.uid)
    {
        worker.epoch = worker.epoch.max(desired.epoch);
        // If a leader dies before it has written a restart, only the daemons know its count.
        worker.counted_restarts = worker.counted_restarts.max(desired.counted_restarts);
        let named = worker
            .incarnation
            .as_ref()
            .is_some_and(|it| desired.fresh.contains(it));
        let mut restarts = desired.worker_restarts.iter();
        let restart = restarts.find(|restart| restart.incarnation == worker.incarnation);
        let of_group = (desired.generation, desired.release);
        let (generation, release) = restart.map_or(of_group, |restart| (restart.generation, restart.release));
        if worker.phase() == pb::Phase::Fresh && release && named {
            enter(worker, pb::Phase::Running, generation);
        } else if worker.generation < generation {
            enter(worker, pb::Phase::Parked, generation);
        }
        if worker.phase() == pb::Phase::Parked && release && worker.generation == generation {
            enter(worker, pb::Phase::Running, generation);
        }
    }
}

pub(crate) fn enter(worker: &mut pb::WorkerState, phase: pb::Phase, generation: u64) {
    worker.set_phase(phase);
    worker.generation = generation;
    worker.heartbeat = pb::Heartbeat::Unspecified.into();
    worker.revision += 1;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    worker.since_unix_nanos = i64::try_from(now.as_nanos()).unwrap_or(i64::MAX);
}

/// The worker of a pod with an agent that has just started.
pub(crate) fn fresh(group: &str, pod: &Pod) -> pb::WorkerState {
    let mut worker = pb::WorkerState {
        group_uid: group.to_owned(),
        job: pod.labels()[labels::BATCH_JOB_NAME].clone(),
        completion_index: pod.labels()[labels::BATCH_JOB_COMPLETION_INDEX]
            .parse()
            .unwrap_or_default(),
        container: "worker".into(),
        incarnation: Some(pb::Incarnation {
            pod_uid: pod.uid().unwrap_or_default(),
            container_id: format!("container of {}", pod.name_any()),
        }),
        pod_name: pod.name_any(),
        ..pb::WorkerState::default()
    };
    enter(&mut worker, pb::Phase::Fresh, 0);
    worker
}

pub(crate) fn message(kind: ToHub) -> pb::NodeMessage {
    pb::NodeMessage { kind: Some(kind) }
}
