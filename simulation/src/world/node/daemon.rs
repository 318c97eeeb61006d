//! The node daemon: the real table of workers and its outbox, between containerd, the agents and
//! the hub.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_node_daemon::hub_link::convert;
use lockstep_node_daemon::plain;
use lockstep_node_daemon::worker::driver;
use lockstep_node_daemon::worker::facts::{Effects, Input, ListedContainer, LiveContainer};
use lockstep_node_daemon::worker::outbox::Outbox;
use lockstep_node_daemon::worker::state::Table;
use lockstep_node_daemon::worker::types::{
    ContainerId, Ended, Epoch, Exit as DaemonExit, LinkId, PodUid, UnixNanos,
};
use lockstep_proto::node::v1 as pb;

use crate::time::{MS, SEC, Time, US, unix};
use crate::world::World;
use crate::world::event::{Event, NodeIndex, StreamId, Up};
use crate::world::kubernetes::api_server::node_name;
use crate::world::node::container::{Container, exit};
use crate::world::node::{LocalPod, pod_fact};

/// Time between listings if nothing has happened.
const RELIST: Time = 60 * SEC;

/// One node daemon. Its state is void while it does not run.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) life: u32,
    pub(crate) runs: bool,
    table: Table,
    /// Workers without an agent.
    pub(crate) plain: plain::state::Table,
    /// When the last listing of these workers arrives.
    pub(crate) listed: Time,
    /// When it lists next if nothing happens.
    lists_again: Time,
    pub(crate) outbox: Outbox,
    links: BTreeMap<ContainerId, LinkId>,
    next_link: u64,
    pub(crate) stream: Option<StreamId>,
    /// Pause until the next attempt to connect.
    pub(crate) pause: Time,
    /// Containers that lack their agent, by what NRI showed.
    without_agent: BTreeSet<String>,
    /// The generation of the last order from the hub, if that was a release.
    released: Option<u64>,
}

impl Daemon {
    pub(crate) fn new() -> Self {
        Self {
            life: 0,
            runs: false,
            table: Table::new(0),
            plain: plain::state::Table::new(0, BTreeMap::new()),
            listed: 0,
            lists_again: 0,
            outbox: Outbox::default(),
            links: BTreeMap::new(),
            next_link: 0,
            stream: None,
            pause: 50 * MS,
            without_agent: BTreeSet::new(),
            released: None,
        }
    }

    /// The generation at which it lets this container run, if it knows that the container lacks its
    /// agent.
    pub(crate) fn lets_run(&self, container: &str) -> Option<u64> {
        let knows = self.runs && self.without_agent.contains(container);
        self.released.filter(|_| knows)
    }

    /// The state of all its workers.
    pub(crate) fn knows(&self) -> Vec<pb::WorkerState> {
        let all = self.table.snapshot().into_iter().chain(self.plain.snapshot());
        all.map(convert::worker_state).collect()
    }

    pub(crate) fn new_link(&mut self) -> LinkId {
        self.next_link += 1;
        LinkId(self.next_link)
    }
}

impl World {
    pub(crate) fn daemon_lives(&self, node: NodeIndex, life: u32) -> bool {
        let daemon = &self.nodes[node].daemon;
        daemon.runs && daemon.life == life
    }

    pub(crate) fn daemon_start(&mut self, node: NodeIndex) {
        if !self.nodes[node].up || self.nodes[node].daemon.runs {
            return;
        }
        // /proc/uptime has a resolution of 10 ms.
        let uptime = (self.now - self.nodes[node].booted_at) / (10 * MS) * (10 * MS);
        let records = self.nodes[node].records.all();
        let daemon = &mut self.nodes[node].daemon;
        let life = daemon.life + 1;
        *daemon = Daemon {
            life,
            runs: true,
            table: Table::new(uptime),
            plain: plain::state::Table::new(uptime, records),
            ..Daemon::new()
        };
        self.say(|| format!("node-{node}: the daemon starts"));
        let welcomed = self.nodes[node].welcomed;
        self.daemon_input(node, life, Input::Welcomed(Epoch(welcomed)));
        let synchronize = self.now + self.rng.span(MS, 20 * MS);
        self.queue
            .push(synchronize, Event::DaemonSynchronize { node, daemon: life });
        let list = synchronize + self.rng.span(MS, 20 * MS);
        self.queue.push(list, Event::DaemonList { node, daemon: life });
        self.queue
            .push(list + SEC, Event::DaemonList { node, daemon: life });
        let connect = self.now + self.rng.span(MS, 30 * MS);
        self.queue
            .push(connect, Event::DaemonConnect { node, daemon: life });
        let containers: Vec<String> = self.nodes[node].containers().cloned().collect();
        for container in containers {
            self.agent_connect_later(&container);
        }
    }

    /// The daemon's process is gone, and its end of every connection with it. Workers run on.
    pub(crate) fn daemon_crash(&mut self, node: NodeIndex) {
        if !self.nodes[node].daemon.runs {
            return;
        }
        self.say(|| format!("node-{node}: the daemon dies"));
        self.nodes[node].daemon.runs = false;
        if let Some(stream) = self.nodes[node].daemon.stream.take() {
            self.node_end_breaks(stream);
        }
        let containers: Vec<String> = self.nodes[node].containers().cloned().collect();
        for container in containers {
            self.agent_loses_link(&container);
        }
    }

    /// NRI shows all pods and containers to a plugin that has just connected.
    pub(crate) fn daemon_synchronize(&mut self, node: NodeIndex, daemon: u32) {
        if self.scenario.plain {
            return;
        }
        let local = || self.nodes[node].local.values().filter(|pod| !pod.plain);
        let pods = local().map(pod_fact).collect();
        let containers: Vec<LiveContainer> = local()
            .flat_map(|pod| pod.containers.iter().map(move |id| (pod, id)))
            .filter(|(_, id)| {
                let container = self.containers.get(*id);
                container.is_some_and(|container| container.exit.is_none() || container.forgotten)
            })
            .map(|(pod, id)| LiveContainer {
                pod: PodUid::from(pod.uid.as_str()),
                id: ContainerId::from(id.as_str()),
                name: "worker".to_owned(),
                without_agent: self.is_without_agent(id),
            })
            .collect();
        if self.daemon_lives(node, daemon) {
            let shown = containers.iter().filter(|container| container.without_agent);
            self.nodes[node].daemon.without_agent = shown.map(|container| container.id.to_string()).collect();
        }
        self.daemon_input(node, daemon, Input::Synchronized { pods, containers });
    }

    /// A listing through CRI.
    pub(crate) fn daemon_list(&mut self, node: NodeIndex, daemon: u32) {
        if !self.daemon_lives(node, daemon) {
            return;
        }
        if self.scenario.has_plain() {
            self.daemon_list_plain(node, daemon);
            let again = &mut self.nodes[node].daemon.lists_again;
            if *again <= self.now {
                *again = self.now + RELIST;
                self.queue.push(*again, Event::DaemonList { node, daemon });
            }
        }
        if self.scenario.plain {
            return;
        }
        let mark = self.nodes[node].daemon.table.mark();
        let local = || self.nodes[node].local.values().filter(|pod| !pod.plain);
        let pods = local().map(pod_fact).collect();
        let containers = local()
            .flat_map(|pod| pod.containers.iter().map(move |id| (pod, id)))
            .filter_map(|(pod, id)| {
                let container = self.containers.get(id)?;
                Some(ListedContainer {
                    pod: PodUid::from(pod.uid.as_str()),
                    id: ContainerId::from(id.as_str()),
                    name: "worker".to_owned(),
                    ended: self.shown_end(node, pod, id, container),
                })
            })
            .collect();
        self.daemon_input(
            node,
            daemon,
            Input::Listed {
                mark,
                pods,
                containers,
            },
        );
    }

    /// The end of a container as the daemon's listing has it. Only the successor of a forgotten
    /// container tells that it has ended (`cri::convert::end_by_successor`).
    fn shown_end(&self, node: NodeIndex, pod: &LocalPod, id: &str, container: &Container) -> Option<Ended> {
        let shown = |at| UnixNanos(unix(at, self.nodes[node].clock_ahead));
        if !container.forgotten {
            return container.exit.map(|(code, at)| Ended {
                exit: exit(code),
                at: shown(at),
            });
        }
        let successor = pod.containers.iter().skip_while(|other| *other != id).nth(1)?;
        let created = self.containers.get(successor)?.created;
        Some(Ended {
            exit: DaemonExit::UNKNOWN,
            at: shown(created),
        })
    }

    /// containerd notifies the daemon a little later. The notification is lost if the daemon does
    /// not run.
    pub(crate) fn notify_daemon(&mut self, node: NodeIndex, input: Input) {
        let daemon = &self.nodes[node].daemon;
        if daemon.runs {
            let life = daemon.life;
            let at = self.now + self.rng.span(100 * US, 5 * MS);
            self.queue.push(
                at,
                Event::DaemonInput {
                    node,
                    daemon: life,
                    input,
                },
            );
        }
    }

    pub(crate) fn daemon_input(&mut self, node: NodeIndex, daemon: u32, input: Input) {
        if !self.daemon_lives(node, daemon) {
            return;
        }
        if let Some(of_plain) = driver::of_both(&input) {
            self.daemon_plain(node, daemon, of_plain);
        }
        let now = UnixNanos(unix(self.now, self.nodes[node].clock_ahead));
        let daemon = &mut self.nodes[node].daemon;
        match &input {
            Input::Registered { id, link, .. } => {
                daemon.links.insert(id.clone(), *link);
            }
            Input::LinkDown(id, link) if daemon.links.get(id) == Some(link) => {
                daemon.links.remove(id);
            }
            _ => {}
        }
        let orders: Vec<u64> = match &input {
            Input::Desired(groups) => groups.iter().map(|group| group.epoch.0).collect(),
            _ => Vec::new(),
        };
        let effects = daemon.table.apply(input, now);
        if effects.stale.is_empty() {
            self.check_obeyed(node, &orders);
        }
        self.daemon_effects(node, effects);
    }

    fn daemon_effects(&mut self, node: NodeIndex, effects: Effects) {
        for (id, link, target) in effects.targets {
            if self.nodes[node].daemon.links.get(&id) == Some(&link) {
                self.send_target(id.as_str(), link, target);
            }
        }
        for state in &effects.reports {
            self.say(|| {
                format!(
                    "node-{node}: {} {} is {} at {} (revision {})",
                    state.pod_name,
                    state.incarnation.container,
                    state.phase.name(),
                    state.generation,
                    state.revision
                )
            });
        }
        self.nodes[node].daemon.outbox.put(effects.reports);
        for ask in effects.kills {
            let at = self.now + self.rng.span(MS, 20 * MS);
            self.queue.push(
                at,
                Event::HostKill {
                    container: ask.container.as_str().to_owned(),
                    before: ask.before.map_or(0, |before| before.0),
                    rounds: 20,
                },
            );
        }
        for id in effects.stops {
            self.stop_soon(node, id.as_str());
        }
        for id in effects.dropped {
            self.nodes[node].daemon.links.remove(&id);
        }
        self.daemon_flush(node);
    }

    /// Sends reports that wait, if the hub has welcomed this daemon.
    pub(crate) fn daemon_flush(&mut self, node: NodeIndex) {
        let daemon = &self.nodes[node].daemon;
        let Some(id) = daemon.stream else { return };
        if !self.streams.get(&id).is_some_and(|stream| stream.welcomed) {
            return;
        }
        let waiting = daemon.outbox.take(usize::MAX);
        if !waiting.is_empty() {
            let workers: Vec<_> = waiting.into_iter().map(convert::worker_state).collect();
            self.check_epochs(node, &workers);
            self.send_up(id, Up::Report(workers));
        }
    }

    /// The snapshot that a new stream begins with: all that the daemon knows, including reports
    /// that waited.
    pub(crate) fn daemon_hello(&mut self, node: NodeIndex) -> Vec<pb::WorkerState> {
        let daemon = &self.nodes[node].daemon;
        daemon.outbox.clear();
        let supervised = daemon.table.snapshot();
        let lowest = supervised.iter().map(|state| state.epoch.0).min();
        let snapshot = supervised.into_iter().chain(daemon.plain.snapshot());
        let snapshot: Vec<_> = snapshot.map(convert::worker_state).collect();
        self.check_epochs(node, &snapshot);
        self.check_remembered(node, lowest);
        snapshot
    }

    /// A hub has welcomed the daemon, which records that and then acts on it.
    pub(crate) fn daemon_welcomed(&mut self, node: NodeIndex, epoch: u64) {
        let at = &mut self.nodes[node];
        at.welcomed = at.welcomed.max(epoch);
        let life = at.daemon.life;
        self.daemon_input(node, life, Input::Welcomed(Epoch(epoch)));
        self.daemon_flush(node);
    }

    pub(crate) fn daemon_receives(&mut self, node: NodeIndex, message: pb::hub_message::Kind) {
        let life = self.nodes[node].daemon.life;
        match message {
            pb::hub_message::Kind::Desired(desired) => {
                for group in &desired.groups {
                    self.say(|| {
                        format!(
                            "{} receives: epoch {} generation {} release {} fresh {}",
                            node_name(node),
                            group.epoch,
                            group.generation,
                            group.release,
                            group.fresh.len()
                        )
                    });
                    self.nodes[node].daemon.released = group.release.then_some(group.generation);
                }
                self.daemon_input(node, life, Input::Desired(convert::desired(desired)));
            }
            pb::hub_message::Kind::Forget(forget) => {
                let input = Input::Forget(forget.group_uid.into(), Epoch(forget.epoch));
                self.daemon_input(node, life, input);
            }
            _ => {}
        }
    }
}
