//! Nodes: machines that boot and die, with everything on them.

mod agent;
pub(crate) mod container;
pub(crate) mod daemon;
pub(crate) mod kubelet;
pub(crate) mod plain;
pub(crate) mod ranks;
pub(crate) mod standby;
pub(crate) mod worker;

use std::collections::{BTreeMap, BTreeSet};

use lockstep_node_daemon::worker::types::{Pod, SandboxId, Standby};

use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::{Event, NodeIndex};
use crate::world::node::daemon::Daemon;
use crate::world::node::plain::Memory;

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) up: bool,
    /// The machine is gone for good.
    pub(crate) gone: bool,
    /// Number of the current boot.
    pub(crate) life: u32,
    pub(crate) booted_at: Time,
    /// Error of its wall clock, in nanoseconds.
    pub(crate) clock_ahead: i64,
    pub(crate) daemon: Daemon,
    /// The records of its daemons.
    pub(crate) records: Memory,
    /// The highest epoch that its daemons have recorded, and the epoch that one of them obeyed
    /// last.
    pub(crate) welcomed: u64,
    pub(crate) obeyed: u64,
    /// The pods that the kubelet looks after, by UID.
    pub(crate) local: BTreeMap<String, LocalPod>,
}

/// A pod as the kubelet knows it.
#[derive(Debug, Clone)]
pub(crate) struct LocalPod {
    pub(crate) uid: String,
    pub(crate) name: String,
    pub(crate) jobset_uid: String,
    pub(crate) restart_attempt: i32,
    pub(crate) job: String,
    pub(crate) index: u32,
    pub(crate) sandbox: String,
    /// Oldest first.
    pub(crate) containers: Vec<String>,
    pub(crate) never: bool,
    /// Its worker has no agent, on purpose.
    pub(crate) plain: bool,
    restarts: u32,
    /// A container is being created.
    pub(crate) creating: bool,
    /// The kubelet knows that it is being deleted.
    terminating: bool,
    ended: Option<i32>,
    running_reported: bool,
}

impl Node {
    pub(crate) fn new() -> Self {
        Self {
            up: true,
            gone: false,
            life: 0,
            booted_at: 0,
            clock_ahead: 0,
            daemon: Daemon::new(),
            records: Memory::default(),
            welcomed: 0,
            obeyed: 0,
            local: BTreeMap::new(),
        }
    }

    /// Ids of its containers, ended ones included.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &String> {
        self.local.values().flat_map(|pod| &pod.containers)
    }
}

impl World {
    pub(crate) fn node_lives(&self, node: NodeIndex, life: u32) -> bool {
        self.nodes[node].up && self.nodes[node].life == life
    }

    /// Power off: every process is gone at once.
    pub(crate) fn node_crash(&mut self, node: NodeIndex) {
        if !self.nodes[node].up {
            return;
        }
        self.say(|| format!("node-{node} dies"));
        let containers: Vec<String> = self.nodes[node].containers().cloned().collect();
        for id in &containers {
            self.note_loss(id);
            self.note_end(id);
        }
        self.daemon_crash(node);
        self.nodes[node].up = false;
        self.nodes[node].life += 1;
        self.nodes[node].records = Memory::default();
        (self.nodes[node].welcomed, self.nodes[node].obeyed) = (0, 0);
        let now = self.now;
        for id in &containers {
            if let Some(container) = self.containers.get_mut(id) {
                container.lives = false;
                container.worker = None;
                container.processes.clear();
                (container.standby, container.released) = (None, None);
                container.ranks.waiting.clear();
                if container.exit.is_none() {
                    container.exit = Some((255, now));
                    // One in four, without a draw.
                    container.forgotten = id.bytes().map(u32::from).sum::<u32>() % 4 == 1;
                }
            }
        }
    }

    /// The machine boots. The kubelet finds dead sandboxes and creates new ones.
    pub(crate) fn node_start(&mut self, node: NodeIndex) {
        if self.nodes[node].up || self.nodes[node].gone {
            return;
        }
        self.say(|| format!("node-{node} boots"));
        let now = self.now;
        self.nodes[node].up = true;
        self.nodes[node].booted_at = now;
        let at = now + self.rng.span(100 * MS, 3 * SEC);
        self.queue.push(at, Event::DaemonStart { node });
        let local = self.nodes[node].local.keys();
        let bound = self.api.pods.values().filter(|pod| pod.node == Some(node));
        let pods: BTreeSet<String> = local.chain(bound.map(|pod| &pod.uid)).cloned().collect();
        for uid in pods {
            let sandbox = self.api.uid("sandbox");
            if let Some(pod) = self.nodes[node].local.get_mut(&uid) {
                pod.sandbox = sandbox;
                pod.creating = false;
            }
            let after = self.rng.span(500 * MS, 5 * SEC);
            self.kubelet_later(node, &uid, after);
        }
    }
}

/// The pod as NRI and CRI show it.
fn pod_fact(pod: &LocalPod) -> (SandboxId, Pod) {
    let fact = Pod {
        uid: pod.uid.as_str().into(),
        namespace: "ns".to_owned(),
        name: pod.name.clone(),
        group: pod.jobset_uid.as_str().into(),
        job: pod.job.clone(),
        index: pod.index,
        supervised: BTreeSet::from(["worker".to_owned()]),
        started_again: !pod.never,
        // Only for what is mounted.
        standby: Standby::Nothing,
    };
    (pod.sandbox.as_str().into(), fact)
}
