//! Nodes: machines that boot and die, with everything on them.

mod agent;
pub(crate) mod container;
pub(crate) mod daemon;
pub(crate) mod kubelet;
pub(crate) mod plain;
pub(crate) mod worker;

use std::collections::{BTreeMap, BTreeSet};

use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::{Event, NodeIndex};
use crate::world::node::daemon::Daemon;
use crate::world::node::kubelet::LocalPod;
use crate::world::node::plain::Memory;

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) up: bool,
    /// It is gone for good.
    pub(crate) gone: bool,
    /// Tells boots apart.
    pub(crate) life: u32,
    pub(crate) booted_at: Time,
    /// How wrong its wall clock is, nanoseconds.
    pub(crate) clock_ahead: i64,
    pub(crate) daemon: Daemon,
    /// What its daemons write down.
    pub(crate) records: Memory,
    /// The highest epoch that its daemons have written down, and the highest that one of them has
    /// obeyed.
    pub(crate) welcomed: u64,
    pub(crate) obeyed: u64,
    /// The pods that the kubelet looks after, by UID.
    pub(crate) local: BTreeMap<String, LocalPod>,
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

    /// Ids of the containers here, ended ones included.
    pub(crate) fn containers(&self) -> impl Iterator<Item = &String> {
        self.local.values().flat_map(|pod| &pod.containers)
    }
}

impl World {
    pub(crate) fn node_lives(&self, node: NodeIndex, life: u32) -> bool {
        self.nodes[node].up && self.nodes[node].life == life
    }

    /// Power off: every process is gone, without a word.
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
                container.exit.get_or_insert((255, now));
            }
        }
    }

    /// The machine boots. The kubelet finds sandboxes dead and makes new ones.
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
