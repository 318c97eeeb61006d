//! Invariants of each start of a worker: it has one process, at the generation of its peers, and
//! something explains the start.

use super::latest;
use crate::scenario::Profile;
use crate::world::World;
use crate::world::kubernetes::controllers::completed;
use crate::world::node::container::{Container, Identity};
use crate::world::node::worker::Process;
use crate::world::replica::group::durable_of;

impl World {
    /// A worker is about to be started.
    pub(crate) fn check_start(&mut self, id: &str, generation: u64) {
        self.truth.started += 1;
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let (identity, uid) = (container.identity.clone(), container.jobset_uid.clone());
        if !container.processes.is_empty() {
            return self.violate(format!(
                "{id} starts its worker while processes of the one before remain"
            ));
        }
        if container.started.is_some_and(|before| before >= generation) {
            return self.violate(format!("{id} starts generation {generation} twice"));
        }
        if let Some(container) = self.containers.get_mut(id) {
            container.started = Some(generation);
        }
        let found = self.runs_beside(id, generation);
        let found = found.or_else(|| self.is_untimely(id, generation));
        if let Some(what) = found {
            return self.violate(what);
        }
        let Some(before) = self.truth.starts.insert(identity.clone(), generation) else {
            return;
        };
        if let Some(what) = self.is_unexplained(&identity, &uid, (before, generation)) {
            self.violate(what);
        }
    }

    /// Finds a process that this worker may not run beside: another one of its own, or one of
    /// another generation.
    fn runs_beside(&self, id: &str, generation: u64) -> Option<String> {
        let container = self.containers.get(id)?;
        let (identity, uid) = (&container.identity, &container.jobset_uid);
        for (other_id, other) in &self.containers {
            if other_id == id || other.jobset_uid != *uid || other.processes.is_empty() {
                continue;
            }
            let pod = self.api.pods.get(&other.pod);
            let counts = pod.is_some_and(|pod| !pod.is_terminal());
            if counts && other.identity == *identity {
                return Some(format!(
                    "{id} starts {identity:?} while {other_id} still has processes of it"
                ));
            }
            // No restart of the whole group may lie between two generations that run at once.
            let is_of_other_generation = |process: &&Process| {
                let (lower, higher) = (
                    process.generation.min(generation),
                    process.generation.max(generation),
                );
                self.truth
                    .of_all
                    .iter()
                    .any(|of_all| lower < *of_all && *of_all <= higher)
            };
            // A dropped worker is on its way out, and nothing waits for that.
            let counts = counts && !self.is_dropped(&other.identity, &other.pod);
            // Nor does anything wait for a worker that may come late and was started without its
            // agent.
            let counts = counts && (self.has_joined(&other.identity) || !self.is_without_agent(other_id));
            // Only its daemon can tell that a worker still runs.
            let counts = counts && !self.is_lied_about(other.node);
            if counts && let Some(process) = other.processes.values().find(is_of_other_generation) {
                return Some(format!(
                    "{id} starts at generation {generation} while {other_id} has a process of generation {}",
                    process.generation
                ));
            }
        }
        None
    }

    /// Says why this worker may not start yet, or no longer.
    fn is_untimely(&self, id: &str, generation: u64) -> Option<String> {
        let container = self.containers.get(id)?;
        let (identity, restart_attempt) = (&container.identity, container.restart_attempt);
        // A lie of its own daemon may have made the leader believe that it ran at a generation
        // before that was durable, or before it was assigned.
        let is_lied_about = self.is_lied_about(container.node);
        let jobset = self.api.jobset.as_ref();
        if let Some(jobset) = jobset.filter(|jobset| jobset.uid_str() == container.jobset_uid) {
            let latest = latest(&durable_of(jobset));
            if latest < generation && !is_lied_about {
                return Some(format!(
                    "{id} starts at generation {generation}, durable is {latest}"
                ));
            }
        }
        let is_present = jobset.is_some_and(|jobset| jobset.restart_attempt() == restart_attempt);
        if is_present && !self.truth.was_suspended && self.waits_for_gang(identity) {
            return Some(format!(
                "{identity:?} starts before the minimum of its gang is bound"
            ));
        }
        let of_all = generation == 0 || self.truth.of_all.contains(&generation);
        if !of_all && !is_lied_about && !self.has_worker_restart(identity) {
            return Some(format!(
                "{identity:?} starts at generation {generation}, which is not one of the whole group"
            ));
        }
        if let Some(job) = self.api.jobs.get(&identity.0)
            && completed(job).contains(&identity.1)
            && restart_attempt == jobset.map_or(0, |jobset| jobset.restart_attempt())
        {
            return Some(format!("{id} runs completed work of {identity:?} again"));
        }
        None
    }

    /// Says what is wrong if nothing explains that this worker, which ran at the generation
    /// `before`, is started again.
    fn is_unexplained(
        &self,
        identity: &Identity,
        uid: &str,
        (before, generation): (u64, u64),
    ) -> Option<String> {
        if let Some(peer) = self.left_behind(identity, uid, (before, generation)) {
            return Some(format!(
                "{identity:?} ran at generation {before} and is started at {generation}, while {peer:?} has run since before it ended"
            ));
        }
        if self.scenario.profile == Profile::Calm {
            return Some(format!(
                "{identity:?} is started again although no worker has failed"
            ));
        }
        let upto = before.max(generation.saturating_sub(1));
        let base = self.truth.of_all.range(..=before).next_back();
        let base = base.copied().unwrap_or(0);
        let explained = self.truth.causes.iter().any(|cause| {
            let concerns = cause.only.as_ref().is_none_or(|only| only == identity);
            // The group may be at a lower generation if this worker has had a worker restart since.
            let since = if cause.only.is_none() { base } else { before };
            concerns && cause.lo <= upto && cause.hi >= since
        });
        (!explained).then(|| {
            format!(
                "{identity:?} ran at generation {before} and is started at {generation}, but nothing has happened at {before} to {upto}"
            )
        })
    }

    /// A worker that ran together with an earlier incarnation of this one, and is not restarted
    /// with it. Until all workers of a stage have started, a new leader cannot know which have.
    pub(super) fn left_behind(
        &self,
        identity: &Identity,
        uid: &str,
        (before, generation): (u64, u64),
    ) -> Option<Identity> {
        let ended = self.truth.ended.get(identity)?;
        let jobset = self.api.jobset.as_ref()?;
        let started = durable_of(jobset).started;
        let stage = |identity: &Identity| identity.0.split('-').nth(1).unwrap_or_default().to_owned();
        let is_lied_about = |other: &Container| self.is_lied_about(other.node);
        let mut own = self
            .containers
            .values()
            .filter(|other| other.identity == *identity);
        if own.any(is_lied_about) {
            return None;
        }
        if before < generation || !started.contains(&stage(identity)) || !self.has_joined(identity) {
            return None;
        }
        let mut peers = self.containers.values().filter(|other| {
            let runs = |process: &Process| process.generation == generation && process.since < *ended;
            other.jobset_uid == uid
                && !is_lied_about(other)
                && started.contains(&stage(&other.identity))
                && other.processes.values().any(runs)
        });
        peers.next().map(|other| other.identity.clone())
    }

    /// A worker has ended, or its container has.
    pub(crate) fn note_end(&mut self, id: &str) {
        if let Some(container) = self
            .containers
            .get(id)
            .filter(|container| container.worker.is_some())
        {
            let identity = container.identity.clone();
            self.truth.ended.insert(identity, self.now);
            self.note_together(id);
        }
    }
}
