//! Invariants of workers without agents: which containers are stopped, and which generation they
//! belong to.

use lockstep_core::restart::DurablePhase;

use super::latest;
use crate::scenario::Profile;
use crate::world::World;
use crate::world::kubernetes::controllers::{completed, width};
use crate::world::node::container::Identity;
use crate::world::replica::group::durable_of;

impl World {
    /// A container ends. If it had no agent, this notes whether all others ran then, at its
    /// generation, after a durable end of the restart. Those that fail while others still stop, or
    /// have not come up yet, are started again with them.
    pub(super) fn note_together(&mut self, id: &str) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let (identity, generation) = (container.identity.clone(), container.started);
        if container.plain.is_none() {
            return;
        }
        let runs = |worker: &Identity| {
            let mut of_it = self.containers.values().filter(|other| other.identity == *worker);
            *worker == identity
                || of_it.any(|other| other.lives && other.worker.is_some() && other.started == generation)
        };
        let all = self.api.jobs.iter().all(|(name, job)| {
            let done = completed(job);
            let open = (0..width(job)).filter(|index| !done.contains(index));
            open.into_iter().all(|index| runs(&(name.clone(), index)))
        });
        let durable = self.api.jobset.as_ref().map(|jobset| durable_of(jobset));
        let over = durable.is_some_and(|durable| {
            durable.phase == DurablePhase::InSync && Some(durable.generation.0) == generation
        });
        match generation.filter(|_| all && over) {
            Some(generation) => drop(self.truth.together.insert(identity, generation)),
            None => drop(self.truth.together.remove(&identity)),
        }
    }

    /// The kubelet starts a container.
    pub(crate) fn check_container_start(&mut self, id: &str) {
        self.truth.started += 1;
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let (identity, restart_attempt) = (container.identity.clone(), container.restart_attempt);
        let rival = self.containers.iter().find(|(other_id, other)| {
            let counts = self
                .api
                .pods
                .get(&other.pod)
                .is_some_and(|pod| !pod.is_terminal());
            *other_id != id && other.identity == identity && counts && !other.processes.is_empty()
        });
        if let Some(rival) = rival.map(|(rival, _)| rival.clone()) {
            let what = format!("{id} starts {identity:?} while {rival} still has processes of it");
            return self.violate(what);
        }
        let done = self.api.jobs.get(&identity.0).map(|job| completed(job));
        let present = self
            .api
            .jobset
            .as_ref()
            .map_or(0, |jobset| jobset.restart_attempt());
        if restart_attempt == present && done.is_some_and(|done| done.contains(&identity.1)) {
            return self.violate(format!("{id} runs completed work of {identity:?} again"));
        }
        self.say(|| format!("{id}: {}[{}] starts without an agent", identity.0, identity.1));
        if self.truth.begun.insert(identity.clone(), id.to_owned()).is_some()
            && !self.is_without_agent(id)
            && self.scenario.profile == Profile::Calm
        {
            self.violate(format!(
                "{identity:?} is started again although no worker has failed"
            ));
        }
    }

    /// The daemon says which generation a container belongs to.
    pub(crate) fn check_assigned(&mut self, id: &str, generation: u64) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.started == Some(generation) {
            return;
        }
        if let Some(before) = container.started.replace(generation) {
            return self.violate(format!(
                "{id} belongs to generation {before}, and then to {generation}"
            ));
        }
        for process in container.processes.values_mut() {
            process.generation = generation;
        }
        let (identity, uid) = (container.identity.clone(), container.jobset_uid.clone());
        self.say(|| {
            format!(
                "{id}: {}[{}] belongs to generation {generation}",
                identity.0, identity.1
            )
        });
        let Some(before) = self.truth.starts.insert(identity.clone(), generation) else {
            return;
        };
        // A generation that was not durable, and that no part remembers, is assigned once more.
        let durable = self.api.jobset.as_ref().map(|jobset| latest(&durable_of(jobset)));
        if generation < before && durable >= Some(before) {
            return self.violate(format!(
                "{identity:?} was at generation {before} and is now at {generation}"
            ));
        }
        if self.truth.together.get(&identity) != Some(&generation) {
            return;
        }
        if let Some(peer) = self.left_behind(&identity, &uid, (before, generation)) {
            self.violate(format!(
                "{identity:?} is started again at generation {generation}, while {peer:?} has run since before it ended"
            ));
        }
    }

    /// The daemon stops a container that runs.
    pub(crate) fn check_stop(&mut self, id: &str) {
        self.truth.stops += 1;
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let (identity, node) = (container.identity.clone(), container.node);
        if self.is_without_agent(id) {
            return self.check_stop_without_agent(id, &identity);
        }
        let record = self.record_of(id);
        let Some((generation, next)) = record.and_then(|record| Some((record.generation.0, record.next?.0)))
        else {
            return self.violate(format!("{id} is stopped without a record of the reason"));
        };
        if self.scenario.profile == Profile::Calm {
            return self.violate(format!("{id} is stopped although no worker has failed"));
        }
        let place = (node, self.nodes[node].life);
        let stopped = (next, id.to_owned(), place);
        if let Some((for_, other, there)) = self.truth.stopped.insert(identity.clone(), stopped)
            && for_ >= next
            && other != id
            && there == place
        {
            return self.violate(format!(
                "{other} and {id} of {identity:?} are both stopped for {next}"
            ));
        }
        let upto = next.saturating_sub(1);
        if !self.explains(&identity, generation, upto) {
            self.violate(format!(
                "{id} of {identity:?} is stopped for generation {next}, but nothing has happened at {generation} to {upto}"
            ));
        }
    }

    /// The daemon stops a container that was created without its agent: something must have
    /// happened to its group.
    fn check_stop_without_agent(&mut self, id: &str, identity: &Identity) {
        self.truth.without_agent += 1;
        let highest = self.truth.highest;
        if self.scenario.profile == Profile::Calm || !self.explains(identity, 0, highest) {
            self.violate(format!(
                "{id} of {identity:?} is stopped because it has no agent, although nothing has happened"
            ));
        }
    }

    fn explains(&self, identity: &Identity, from: u64, upto: u64) -> bool {
        self.truth.causes.iter().any(|cause| {
            let concerns = cause.only.as_ref().is_none_or(|only| only == identity);
            concerns && cause.lo <= upto && cause.hi >= from
        })
    }
}
