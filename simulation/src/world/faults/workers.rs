//! Failures of workers, and of their agents, containers, pods and nodes.

use lockstep_pod_agent::machine::Exit;

use crate::scenario::TERMINAL_CODE;
use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::fault::Fault;
use crate::world::event::{Event, NodeIndex};
use crate::world::node::container::Container;

impl World {
    fn some_container(&mut self) -> Option<String> {
        self.some_container_that(|_| true)
    }

    /// Some container whose worker runs.
    fn some_running_container(&mut self) -> Option<String> {
        self.some_container_that(Container::runs_undisturbed)
    }

    fn some_container_that(&mut self, suits: impl Fn(&Container) -> bool) -> Option<String> {
        let ids: Vec<String> = self
            .containers
            .iter()
            .filter(|(_, container)| container.lives && suits(container))
            .map(|(id, _)| id.clone())
            .collect();
        self.rng.pick(&ids).cloned()
    }

    fn worker_fails(&mut self, id: &str) {
        let exit = self.some_failure();
        let terminal = exit == Exit::Code(TERMINAL_CODE);
        let rank = self.rank_to_fail(id);
        let worker = self.containers.get(id).and_then(|container| container.worker);
        if let Some(process) = rank.or(worker) {
            self.say(|| format!("{id}: its process {process} fails: {exit:?} (terminal code {terminal})"));
            self.process_will_end(id, process, 0, exit);
        }
    }

    /// Makes a running worker fail. Returns false if none runs.
    pub(super) fn some_worker_fails(&mut self) -> bool {
        let Some(id) = self.some_running_container() else {
            return false;
        };
        self.worker_fails(&id);
        true
    }

    pub(super) fn some_link_breaks(&mut self) {
        if let Some(id) = self.some_container() {
            self.agent_loses_link(&id);
        }
    }

    pub(super) fn some_worker_hangs(&mut self, down: Time) {
        let for_good = self.rng.percent(75);
        if let Some(id) = self.some_running_container() {
            self.worker_hangs(&id, (!for_good).then_some(down));
        }
    }

    pub(super) fn worker_and_leader_fail(&mut self) {
        if self.some_worker_fails() && self.leader().is_some() {
            let at = self.now + self.rng.span(0, 30 * MS);
            let fault = Fault::LeaderCrash;
            self.queue.push(at, Event::Fault { fault });
        }
    }

    pub(super) fn container_and_daemon_die(&mut self, down: Time) {
        let Some(id) = self.some_running_container() else {
            return;
        };
        let node = self.containers.get(&id).map(|container| container.node);
        self.note_loss(&id);
        if let Some(node) = node {
            self.daemon_dies_for(node, down);
        }
        self.container_kill(&id, 137);
    }

    pub(super) fn all_workers_fail(&mut self) {
        let all: Vec<String> = self
            .containers
            .iter()
            .filter(|(_, container)| container.runs_undisturbed())
            .map(|(id, _)| id.clone())
            .collect();
        for id in all {
            if let Some(process) = self.containers.get(&id).and_then(|container| container.worker) {
                let after = self.rng.span(0, 100 * MS);
                self.process_will_end(&id, process, after, Exit::Signal(6));
            }
        }
    }

    /// A container ends, and its agent with it.
    pub(super) fn some_container_ends(&mut self) {
        if let Some(id) = self.some_container() {
            self.container_ends(&id);
        }
    }

    /// The same for a container whose worker runs.
    pub(super) fn some_running_container_ends(&mut self) {
        if let Some(id) = self.some_running_container() {
            self.container_ends(&id);
        }
    }

    fn container_ends(&mut self, id: &str) {
        self.note_loss(id);
        self.container_kill(id, 137);
    }

    pub(super) fn some_pod_is_deleted(&mut self) {
        let pods: Vec<String> = self.api.pods.keys().cloned().collect();
        if let Some(uid) = self.rng.pick(&pods).cloned() {
            self.note_early_loss(&uid);
            self.delete_pod(&uid);
        }
    }

    pub(super) fn node_reboots(&mut self, node: NodeIndex) {
        self.node_crash(node);
        let life = self.nodes[node].life;
        let at = self.now + self.rng.span(2 * SEC, 60 * SEC);
        self.queue.push(at, Event::NodeStart { node, life });
    }

    /// The node disappears for good, unless it is the last one.
    pub(super) fn node_goes(&mut self, node: NodeIndex) {
        let left = self.nodes.iter().filter(|node| !node.gone).count();
        if left > 1 && !self.nodes[node].gone {
            self.node_crash(node);
            self.nodes[node].gone = true;
            self.gone_nodes.insert(node, self.now);
            self.poke_controllers(SEC);
        }
    }

    /// Killed processes that hang in the kernel end.
    pub(super) fn unstick_processes(&mut self) {
        for node in 0..self.nodes.len() {
            for container in self.nodes[node].containers().cloned().collect::<Vec<_>>() {
                let hung: Vec<u64> = self
                    .containers
                    .get(&container)
                    .map(|container| {
                        let waits = container.standby.iter();
                        let ranks = container.ranks.waiting.iter();
                        container
                            .processes
                            .iter()
                            .filter(|(_, process)| process.killed)
                            .map(|(id, _)| *id)
                            .chain(
                                waits
                                    .filter(|waits| waits.process.killed)
                                    .map(|waits| waits.number),
                            )
                            .chain(
                                ranks
                                    .filter(|waits| waits.process.killed)
                                    .map(|waits| waits.number),
                            )
                            .collect()
                    })
                    .unwrap_or_default();
                for process in hung {
                    self.process_will_end(&container, process, MS, Exit::Signal(9));
                }
            }
        }
    }
}
