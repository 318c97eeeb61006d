//! Workers that were started without their agent, because this daemon or NRI was away: nobody has released them, and they obey nobody.
//!
//! They are left alone until their group stops, or their worker is restarted alone. Then they are stopped from outside, once for a generation, and
//! kubelet starts them again, with the agent. Where that does not help, the group is made anew as if nothing had been tried.

use lockstep_mutants::{self as mutants, Mutant};

use super::super::facts::Effects;
use super::super::types::{ContainerId, Desired, PodUid};
use super::{Table, Worker};

impl Table {
    /// Whether this container was made without the agent that it should have: no agent will tell of it, nor of the one before it.
    pub(super) fn is_without_agent(&self, id: &ContainerId) -> bool {
        let worker = self.workers.get(id);
        worker.is_some_and(|worker| worker.without_agent) && !mutants::is(Mutant::AwaitMissingAgent)
    }

    /// Stops those whose group, or who alone, may not run now.
    pub(super) fn stop_without_agents(&mut self, effects: &mut Effects) {
        let mut stops: Vec<(ContainerId, PodUid, String, u64)> = Vec::new();
        for (id, worker) in &self.workers {
            if !worker.without_agent || worker.lost.is_some() {
                continue;
            }
            let Some(entry) = self.pods.get(&worker.pod).filter(|entry| entry.pod.started_again) else {
                continue;
            };
            let desired = self.groups.get(&entry.pod.group);
            let Some(generation) = desired.and_then(|desired| self.stops_for(worker, desired)) else {
                continue;
            };
            if entry
                .stopped
                .get(&worker.name)
                .is_none_or(|last| *last < generation)
            {
                stops.push((id.clone(), worker.pod.clone(), worker.name.clone(), generation));
            }
        }
        for (id, pod, name, generation) in stops {
            if let Some(entry) = self.pods.get_mut(&pod) {
                entry.stopped.insert(name, generation);
                effects.stops.push(id);
            }
        }
    }

    /// The generation that this worker has to stop for.
    fn stops_for(&self, worker: &Worker, desired: &Desired) -> Option<u64> {
        if !desired.release || mutants::is(Mutant::StopWithoutRestart) {
            return Some(desired.generation);
        }
        let is_of_it = |id: &ContainerId| {
            self.workers
                .get(id)
                .is_some_and(|other| other.name == worker.name)
        };
        let held = desired.alone.iter().filter(|(incarnation, alone)| {
            !alone.release && incarnation.pod == worker.pod && is_of_it(&incarnation.container)
        });
        held.map(|(_, alone)| alone.generation).max()
    }
}
