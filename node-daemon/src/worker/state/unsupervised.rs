//! Workers that were started without their agent, because this daemon or NRI was away. NRI shows
//! them once it is back, and CRI until then. They run although they were never released, and they
//! obey no order.
//!
//! They are left unchanged until their group stops, or their own worker restarts. Then one
//! container of a worker is stopped from outside per generation, until it has ended, and the
//! kubelet starts it again, with the agent. If that does not help, the group is recreated.

use lockstep_mutants::mutant;

use super::super::facts::Effects;
use super::super::types::{ContainerId, Desired, Exit, Generation};
use super::{Table, Worker};

impl Table {
    /// True if this container was made without the agent that it should have: no agent will report
    /// it, nor the container before it.
    pub(super) fn is_without_agent(&self, id: &ContainerId) -> bool {
        mutant!(AwaitMissingAgent => false);
        let worker = self.workers.get(id);
        worker.is_some_and(|worker| worker.without_agent)
    }

    /// Stops the workers without an agent whose group, or own worker, must not run now.
    pub(super) fn stop_without_agents(&mut self, effects: &mut Effects) {
        for id in self.without_agents() {
            let Some(worker) = self.workers.get(&id) else {
                continue;
            };
            let Some(entry) = self.pods.get(&worker.pod) else {
                continue;
            };
            let Some(order) = self
                .groups
                .get(&entry.pod.group)
                .filter(|desired| desired.is_of(&entry.pod))
                .map(|desired| self.order(worker, desired))
            else {
                continue;
            };
            self.obey(&id, order, effects);
        }
    }

    /// The stop of this container is over: its end was seen before this, or it is stopped again.
    pub(super) fn on_stop_over(&mut self, id: &ContainerId, effects: &mut Effects) {
        self.not_stopped(id);
        self.stop_without_agents(effects);
    }

    /// The stop of this container did not start. A later fact asks for it again.
    pub fn not_stopped(&mut self, id: &ContainerId) {
        if let Some(worker) = self.workers.get_mut(id) {
            worker.stopping = false;
        }
    }

    /// Live workers without an agent, in pods whose containers the kubelet starts again.
    fn without_agents(&self) -> Vec<ContainerId> {
        let started_again = |worker: &Worker| {
            let entry = self.pods.get(&worker.pod);
            entry.is_some_and(|entry| entry.pod.started_again)
        };
        let workers = self.workers.iter().filter(|(_, worker)| worker.without_agent);
        let live = workers.filter(|(_, worker)| worker.lost.is_none() && started_again(worker));
        live.map(|(id, _)| id.clone()).collect()
    }

    /// The order for a worker without an agent.
    fn order(&self, worker: &Worker, desired: &Desired) -> Order {
        mutant!(StopWithoutRestart => Order::Stop(desired.generation));
        if !desired.release {
            return Order::Stop(desired.generation);
        }
        let is_of_it = |id: &ContainerId| {
            self.workers
                .get(id)
                .is_some_and(|other| other.name == worker.name)
        };
        let held = desired.worker_restarts.iter().filter(|(incarnation, restart)| {
            // As for those with an agent: a generation not above the group's is out of date.
            !restart.release
                && restart.generation > desired.generation
                && incarnation.pod == worker.pod
                && is_of_it(&incarnation.container)
        });
        let held = held.map(|(_, restart)| restart.generation).max();
        held.map_or(Order::Run(desired.generation), Order::Stop)
    }

    /// Stops one container per generation until it has ended, and no other in its place. None is
    /// stopped for a generation at which its group has run, or for a lower one.
    fn obey(&mut self, id: &ContainerId, order: Order, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        let Some(entry) = self.pods.get_mut(&worker.pod) else {
            return;
        };
        let last = entry.stopped.get(&worker.name).copied();
        match order {
            Order::Run(generation) => {
                worker.stopped_for = None;
                worker.peers.released(generation);
                if last.is_none_or(|last| last < generation) {
                    entry.stopped.insert(worker.name.clone(), generation);
                }
            }
            Order::Stop(generation) => {
                let is_next = last.is_none_or(|last| last < generation);
                if worker.stopping || !is_next && worker.stopped_for != Some(generation) {
                    return;
                }
                worker.stopping = true;
                worker.peers = PeerState::Stopped;
                worker.stopped_for = Some(generation);
                entry.stopped.insert(worker.name.clone(), generation);
                effects.stops.push(id.clone());
            }
        }
    }
}

impl Worker {
    /// The generation at which it runs, or ran, beside its peers, without its agent and untouched
    /// by this daemon.
    pub(super) fn released_without_agent(&self) -> Option<Generation> {
        match self.peers {
            PeerState::Released(generation) if self.without_agent => Some(generation),
            _ => None,
        }
    }

    /// The same, for a container that ended with a known exit: with an unknown one, it may have
    /// succeeded.
    pub(super) fn released_generation(&self) -> Option<Generation> {
        let exit = self.lost?.ended.exit;
        self.released_without_agent().filter(|_| exit != Exit::UNKNOWN)
    }
}

/// What the group of a container without its agent did while that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeerState {
    /// Not known to this daemon.
    Unknown,
    /// It was last released at this generation.
    Released(Generation),
    /// It stopped, and this container was to be stopped with it: the container's exit then means
    /// nothing.
    Stopped,
}

impl PeerState {
    fn released(&mut self, generation: Generation) {
        if *self != Self::Stopped {
            *self = Self::Released(generation);
        }
    }
}

/// An order for a worker without an agent.
#[derive(Debug, Clone, Copy)]
enum Order {
    /// To run: its group does, at this generation.
    Run(Generation),
    /// To be stopped for this generation.
    Stop(Generation),
}
