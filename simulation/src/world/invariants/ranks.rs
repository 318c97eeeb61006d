//! Invariants of ranks, which a launcher starts through the agent, and of their standbys
//! (docs/restart-protocol.md, rule 18).
//!
//! That no rank of the attempt before remains is checked at each start of a worker (`starts`):
//! callers and ranks are processes of its tree, a released standby included.

use lockstep_pod_agent::machine::calls::RankStandby;
use lockstep_pod_agent::machine::{Action, Phase, Source};

use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::ProcessId;
use crate::world::node::ranks::Stage;

/// The longest time that a call may lose to a standby. It takes as long again as SIGKILL does.
const CONFIRM: Time = 5 * SEC;

impl World {
    /// A standby of a rank is about to be released for a call.
    pub(crate) fn check_rank_release(&mut self, id: &str, caller: ProcessId, found: usize) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let Some(waits) = container.ranks.waiting.get(found) else {
            return self.violate(format!("{id} releases a standby of a rank, and there is none"));
        };
        let phase = container.machine.status().phase;
        let what = if !matches!(phase, Phase::Starting | Phase::Running) {
            format!("while its worker is {phase:?}")
        } else if waits.process.born < container.doomed_before {
            "that the daemon was asked to kill".to_owned()
        } else if waits.stage != RankStandby::Ready {
            format!("that is {:?}", waits.stage)
        } else {
            return self.check_rank_start(id, caller);
        };
        self.violate(format!("{id} releases a standby of a rank {what}"));
    }

    /// A rank is about to be started for a call.
    pub(crate) fn check_rank_start(&mut self, id: &str, caller: ProcessId) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let Some(calls) = container.processes.get(&caller) else {
            return self.violate(format!("{id} starts a rank for process {caller}, which has gone"));
        };
        let beside = container.processes.iter().find(|(number, process)| {
            let is_before = process.generation != calls.generation;
            **number != caller
                && (is_before || process.local_rank == calls.local_rank && process.local_rank.is_some())
        });
        if let Some((number, process)) = beside {
            let what = format!(
                "{id} starts rank {:?} of generation {} beside process {number}, rank {:?} of generation {}",
                calls.local_rank, calls.generation, process.local_rank, process.generation
            );
            self.violate(what);
        }
    }

    /// Every call whose standby does not confirm is answered in time.
    pub(crate) fn check_calls(&mut self, id: &str) {
        let Some(container) = self.containers.get(id).filter(|container| container.lives) else {
            return;
        };
        let waits = container.ranks.calls.iter().find_map(|call| match call.stage {
            Stage::Releasing { at, dies_after, .. } if self.now > at + CONFIRM + dies_after + MS => {
                Some((call.caller, at))
            }
            _ => None,
        });
        if let Some((caller, at)) = waits {
            let seconds = (self.now - at) / SEC;
            self.violate(format!(
                "{id}: the standby for process {caller} is waited for since {seconds} s"
            ));
        }
    }

    /// An attempt begins: what was started before does not count any more.
    pub(crate) fn note_attempt(&mut self, id: &str, source: Source) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let itself = self.has_standbys(&container.identity.0);
        if let Some(container) = self.containers.get_mut(id) {
            let is_launcher = container.ranks.number > 0;
            container.starts = (itself || is_launcher).then_some((0, 0));
            container.ranks.begin();
            if itself {
                self.note_rank_start(id, source);
            }
        }
    }

    /// The worker or one of its ranks has been started.
    pub(crate) fn note_rank_start(&mut self, id: &str, source: Source) {
        let container = self.containers.get_mut(id);
        if let Some((standby, cold)) = container.and_then(|container| container.starts.as_mut()) {
            match source {
                Source::Standby => *standby += 1,
                Source::Cold => *cold += 1,
            }
        }
    }

    /// The agent reports the starts of this attempt, and no others.
    pub(crate) fn check_starts(&mut self, id: &str) {
        let Some(container) = self.containers.get(id).filter(|container| container.lives) else {
            return;
        };
        let reported = container.machine.status().starts;
        let reported = reported.map(|starts| (starts.standby, starts.cold));
        if reported != container.starts {
            let what = format!(
                "{id} reports the starts {reported:?}, but there were {:?}",
                container.starts
            );
            self.violate(what);
        }
    }

    /// True if standbys of ranks wait that were not told to end.
    pub(super) fn keeps_standbys_of_ranks(&self, id: &str, actions: &[Action]) -> bool {
        let container = self.containers.get(id);
        let mut waiting = container.iter().flat_map(|container| &container.ranks.waiting);
        !actions.contains(&Action::EndStandbys) && waiting.any(|waits| !waits.process.killed)
    }
}
