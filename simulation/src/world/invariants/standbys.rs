//! Invariants of starts from a standby (docs/restart-protocol.md, rule 18).
//!
//! That no other process of the worker remains is checked at each start (`starts`): a released
//! standby counts as started, whether it has confirmed that or not.

use lockstep_pod_agent::machine::{Action, Source};

use super::Truth;
use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::node::container::{Container, Identity};

/// The longest time that a start from a standby may lose. It takes as long again as SIGKILL does.
const CONFIRM: Time = 2 * SEC;

impl Truth {
    /// The last generation that this worker was started with.
    pub(crate) fn started_at(&self, worker: &Identity) -> Option<u64> {
        self.starts.get(worker).copied()
    }

    /// Takes back a start of this worker: nothing of it has run.
    pub(crate) fn take_back(&mut self, worker: &Identity, start: Option<u64>, before: Option<u64>) {
        if start.is_none() || self.started_at(worker) != start {
            return;
        }
        match before {
            Some(before) => drop(self.starts.insert(worker.clone(), before)),
            None => drop(self.starts.remove(worker)),
        }
    }
}

impl World {
    /// A standby is about to be released.
    pub(crate) fn check_release(&mut self, id: &str) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        match &container.standby {
            Some(standby) if standby.process.born < container.doomed_before => self.violate(format!(
                "{id} releases a standby that the daemon was asked to kill"
            )),
            Some(standby) if standby.ready => {}
            Some(_) => self.violate(format!("{id} releases a standby that still imports")),
            None => self.violate(format!("{id} releases a standby, and there is none")),
        }
    }

    /// The agent is about to do all this.
    pub(crate) fn check_standby(&mut self, id: &str, actions: &[Action]) {
        if !self.scenario.has_standbys() {
            return;
        }
        let keeps = self.keeps_standbys_of_ranks(id, actions);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let status = container.machine.status();
        if status.needs_host_kill {
            container.doomed_before = status.host_kill_before.0;
        }
        let waits = container
            .standby
            .as_ref()
            .filter(|standby| !standby.process.killed);
        let ends = actions.contains(&Action::EndStandbys);
        let keeps = keeps || waits.is_some() && !ends;
        let exit = actions.iter().find_map(|action| match action {
            Action::Exit { code, .. } => Some(*code),
            _ => None,
        });
        let cold = Action::Start {
            generation: status.generation,
            source: Source::Cold,
        };
        let what = if ends && exit.is_none() && !container.asked_to_exit && !status.needs_host_kill {
            "a stop ends the standby"
        } else if status.needs_host_kill && keeps {
            "the daemon is asked to kill all, and the standby is kept"
        } else if exit.is_some() && keeps {
            "the agent exits beside its standby"
        } else if exit == Some(0) && container.begun != Some(status.generation.0) {
            "the container exits with 0 although the worker has not run"
        } else if actions.contains(&cold) && waits.is_some_and(|standby| standby.ready) {
            "the worker starts cold beside a standby that is ready"
        } else {
            return;
        };
        self.violate(format!("{id}: {what}"));
    }

    /// The released standby has confirmed that it goes on, or has ended, or neither.
    pub(crate) fn check_confirm_time(&mut self, id: &str) {
        let Some(container) = self.containers.get(id).filter(|container| container.lives) else {
            return;
        };
        let Some(released) = &container.released else {
            return;
        };
        let latest = released.at + CONFIRM + released.dies_after + MS;
        if self.now > latest {
            self.violate(format!(
                "{id} waits for standby {} since {} s",
                released.number,
                (self.now - released.at) / SEC
            ));
        }
    }

    /// No start waits for its standby, and no standby has outlived its container.
    pub(super) fn check_standbys(&mut self) {
        if !self.scenario.has_standbys() {
            return;
        }
        let ids: Vec<String> = self.containers.keys().cloned().collect();
        for id in ids {
            self.check_confirm_time(&id);
            self.check_calls(&id);
            let waits =
                |container: &Container| container.standby.is_some() || !container.ranks.waiting.is_empty();
            let outlives = |container: &&Container| container.exit.is_some() && waits(container);
            if self.containers.get(&id).filter(outlives).is_some() {
                self.violate(format!("{id} has ended, and its standby has not"));
            }
        }
    }
}
