//! Calls: how the agent answers them, and what becomes of a rank and of its caller.

use std::time::Duration;

use lockstep_pod_agent::machine::calls::{RankRelease, may_be_answered};
use lockstep_pod_agent::machine::{Exit, Input, Phase, Source};

use crate::scenario::Profile;
use crate::time::{MS, SEC, Time, US};
use crate::world::World;
use crate::world::event::{Does, ProcessId};
use crate::world::node::ranks::Waiting;
use crate::world::node::standby::REFUSED;
use crate::world::node::worker::Process;

/// The longest time that a released standby takes to confirm, which is too long.
const LATE: Time = 8 * SEC;

/// A call, from the start of the caller to its end.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) caller: ProcessId,
    /// The number of its rank among the launcher's.
    pub(crate) local_rank: u8,
    pub(crate) stage: Stage,
    /// The launcher starts the rank again when this one ends.
    pub(super) again: bool,
}

/// How far a call has come.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The agent has not heard it.
    Open,
    /// The agent has heard it, and has not answered.
    Called,
    Releasing {
        rank: ProcessId,
        release: RankRelease,
        at: Time,
        /// How long the standby takes to die after SIGKILL.
        dies_after: Time,
    },
    /// The caller is the rank.
    Cold,
    /// The caller stands in for this process.
    StandsIn { rank: ProcessId },
}

impl Call {
    pub(super) fn new(caller: ProcessId, local_rank: u8) -> Self {
        Self {
            caller,
            local_rank,
            stage: Stage::Open,
            again: false,
        }
    }

    /// The process that is the rank, or is about to be.
    pub(super) fn rank(&self) -> Option<ProcessId> {
        match self.stage {
            Stage::Open | Stage::Called => None,
            Stage::Releasing { rank, .. } | Stage::StandsIn { rank } => Some(rank),
            Stage::Cold => Some(self.caller),
        }
    }

    pub(super) fn runs(&self) -> bool {
        matches!(self.stage, Stage::Cold | Stage::StandsIn { .. })
    }

    /// True if this standby was released for it, and has not confirmed.
    pub(super) fn releases(&self, number: ProcessId) -> bool {
        matches!(self.stage, Stage::Releasing { rank, .. } if rank == number)
    }
}

impl World {
    fn call_at(&mut self, id: &str, is: impl Fn(&Call) -> bool) -> Option<&mut Call> {
        let container = self.containers.get_mut(id)?;
        container.ranks.calls.iter_mut().find(|call| is(call))
    }

    /// The agent has taken a call.
    pub(super) fn agent_hears(&mut self, id: &str, caller: ProcessId) {
        if let Some(call) = self.call_at(id, |call| call.caller == caller) {
            call.stage = Stage::Called;
            self.agent_answers(id);
        }
    }

    /// The agent answers the calls that can be answered.
    fn agent_answers(&mut self, id: &str) {
        loop {
            let Some(container) = self.containers.get(id) else {
                return;
            };
            let ranks = &container.ranks;
            let mut calls = ranks.calls.iter();
            let next = calls.find(|call| matches!(call.stage, Stage::Called));
            let Some(call) = next.filter(|_| may_be_answered(ranks.dying.len())) else {
                return;
            };
            let (caller, serves) = (call.caller, container.machine.serves_calls());
            let mut waiting = ranks.waiting.iter();
            match waiting.position(|waits| serves && waits.stage.may_go_on()) {
                Some(found) => self.rank_release(id, caller, found),
                None => self.rank_runs_cold(id, caller),
            }
        }
    }

    /// The agent releases a standby for a call.
    fn rank_release(&mut self, id: &str, caller: ProcessId, found: usize) {
        self.check_rank_release(id, caller, found);
        let now = self.now;
        let cannot_be_told = self.rng.percent(5);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let created = container.created;
        let calls = container.processes.get(&caller);
        let (generation, local_rank) = calls.map_or((0, None), |calls| (calls.generation, calls.local_rank));
        let Waiting {
            number, mut process, ..
        } = container.ranks.waiting.swap_remove(found);
        (process.generation, process.since) = (generation, now);
        process.local_rank = local_rank.filter(|_| !cannot_be_told);
        let dies_after = process.dies_after;
        container.processes.insert(number, process);
        if cannot_be_told {
            // It is made to end.
            self.process_kill(id, number);
            self.rank_runs_cold(id, caller);
            return;
        }
        let release = RankRelease::at(Duration::from_nanos(now - created));
        if let Some(call) = self.call_at(id, |call| call.caller == caller) {
            call.stage = Stage::Releasing {
                rank: number,
                release,
                at: now,
                dies_after,
            };
        }
        self.say(|| format!("{id}: standby {number} is to go on for process {caller}"));
        if let Some(deadline) = release.deadline() {
            let at = created + u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
            self.standby_will(id, number, at.saturating_sub(now), Does::IsLate);
        }
        if let Some((after, does)) = self.some_answer(LATE) {
            self.standby_will(id, number, after, does);
        }
        self.rank_warm(id);
    }

    /// The caller becomes the rank itself.
    fn rank_runs_cold(&mut self, id: &str, caller: ProcessId) {
        self.check_rank_start(id, caller);
        if let Some(call) = self.call_at(id, |call| call.caller == caller) {
            call.stage = Stage::Cold;
        }
        let process = self.process(0);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let status = container.machine.status();
        let (stops, counts) = (status.phase == Phase::Stopping, container.machine.serves_calls());
        let Some(calls) = container.processes.get_mut(&caller) else {
            return;
        };
        let at_sigterm = process.at_sigterm;
        *calls = Process {
            born: calls.born,
            generation: calls.generation,
            local_rank: calls.local_rank,
            killed: calls.killed,
            protected: process.protected && !calls.killed,
            ..process
        };
        self.say(|| format!("{id}: process {caller} becomes the rank itself"));
        if let Some((after, exit)) = at_sigterm.filter(|_| stops) {
            // The signal has waited for this.
            self.process_will_end(id, caller, after, exit);
        }
        if counts {
            self.rank_counts(id, Source::Cold);
        }
        self.rank_goes_on(id, caller);
    }

    /// The released standby goes on: it is the rank.
    pub(super) fn rank_confirms(&mut self, id: &str, number: ProcessId) {
        self.check_calls(id);
        let process = self.process(0);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let Some(waited) = container.processes.get_mut(&number) else {
            return;
        };
        *waited = Process {
            born: waited.born,
            since: waited.since,
            generation: waited.generation,
            local_rank: waited.local_rank,
            protected: false,
            ..process
        };
        if let Some(call) = self.call_at(id, |call| call.releases(number)) {
            call.stage = Stage::StandsIn { rank: number };
        }
        self.truth.ranks_from_standby += 1;
        self.say(|| format!("{id}: standby {number} goes on as a rank"));
        self.rank_counts(id, Source::Standby);
        self.rank_goes_on(id, number);
    }

    /// A rank has been started, and the agent knows that.
    fn rank_counts(&mut self, id: &str, source: Source) {
        self.note_rank_start(id, source);
        if let Some(container) = self.containers.get_mut(id) {
            let running = container.ranks.running();
            container.ranks.warming.runs(running);
        }
        let ahead = Duration::ZERO;
        self.agent_feed(id, Input::RankStarted { source, ahead });
        self.rank_warm(id);
    }

    /// The rank's code runs. Some are done before their launcher is.
    fn rank_goes_on(&mut self, id: &str, rank: ProcessId) {
        if self.faults_on && self.rng.percent(30) {
            let after = self.rng.span(SEC, 60 * SEC);
            self.process_will_end(id, rank, after, Exit::Code(0));
        }
    }

    /// A released standby should have confirmed by now.
    pub(super) fn rank_is_late(&mut self, id: &str, number: ProcessId) {
        let now = self.now;
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let mono = Duration::from_nanos(now - container.created);
        let mut calls = container.ranks.calls.iter_mut();
        let Some(call) = calls.find(|call| call.releases(number)) else {
            return;
        };
        let Stage::Releasing { release, .. } = &mut call.stage else {
            return;
        };
        let (gives_up, caller) = (release.gives_up(mono), call.caller);
        let is_refused = release.is_refused();
        if gives_up {
            self.process_kill(id, number);
        }
        if is_refused {
            self.rank_runs_cold(id, caller);
        }
    }

    /// A process that is not the worker has ended. It may have been a caller, or a rank.
    pub(crate) fn rank_ended(&mut self, id: &str, number: ProcessId, exit: Exit) {
        let Some(container) = self.containers.get_mut(id).filter(|container| container.lives) else {
            return;
        };
        let ranks = &mut container.ranks;
        if let Some(at) = ranks.dying.iter().position(|dying| *dying == number) {
            ranks.dying.swap_remove(at);
            return self.agent_answers(id);
        }
        if let Some(at) = ranks.calls.iter().position(|call| call.caller == number) {
            let call = ranks.calls.swap_remove(at);
            // It has hung up.
            if let Some(rank) = call.rank().filter(|rank| container.processes.contains_key(rank)) {
                ranks.dying.push(rank);
                self.process_kill(id, rank);
            }
            return self.launcher_hears(id, &call, exit);
        }
        let Some(call) = ranks.calls.iter_mut().find(|call| call.rank() == Some(number)) else {
            return;
        };
        let caller = call.caller;
        if let Stage::Releasing { release, .. } = &mut call.stage {
            // What it has said may not have been read yet.
            let profile = self.scenario.profile;
            let may_have_run = profile == Profile::Wild && self.scenario.leftovers.is_none();
            let may_have_run = may_have_run && release.deadline().is_some();
            if !may_have_run || exit == REFUSED || !self.rng.percent(10) {
                release.has_ended();
                if release.is_refused() {
                    self.rank_runs_cold(id, caller);
                }
                return;
            }
            call.stage = Stage::StandsIn { rank: number };
            self.rank_counts(id, Source::Standby);
        }
        let after = self.rng.span(20 * US, 2 * MS);
        self.process_will_end(id, caller, after, exit);
    }

    /// Sends SIGKILL to one process of the worker's tree.
    fn process_kill(&mut self, id: &str, number: ProcessId) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let process = container.processes.get_mut(&number);
        if let Some(process) = process.filter(|process| !process.killed) {
            process.killed = true;
            let after = process.dies_after;
            self.process_will_end(id, number, after, Exit::Signal(9));
        }
    }
}
