//! Standbys of ranks: when the agent starts them, and how those that wait end.

use lockstep_pod_agent::machine::calls::RankStandby;
use lockstep_pod_agent::machine::{Exit, Heartbeat};

use crate::time::{SEC, Time};
use crate::world::World;
use crate::world::event::{Does, ProcessId};
use crate::world::node::worker::Process;

/// How long the agent waits before it starts another, if one has ended.
const AGAIN: Time = 30 * SEC;

/// A standby that waits, or still imports.
#[derive(Debug)]
pub(crate) struct Waiting {
    pub(crate) number: ProcessId,
    pub(crate) process: Process,
    /// As the agent knows it.
    pub(crate) stage: RankStandby,
}

/// When the agent starts standbys.
#[derive(Debug, Default)]
pub(super) struct Warming {
    /// It may do so in this attempt.
    may: bool,
    /// It will be allowed to once the attempt has settled.
    settles: bool,
    not_before: Time,
    /// Most ranks that ran at once in this attempt.
    most: usize,
}

impl Warming {
    pub(super) fn begin(&mut self) {
        (self.may, self.settles, self.most) = (false, true, 0);
    }

    pub(super) fn runs(&mut self, number: usize) {
        self.most = self.most.max(number);
    }
}

impl World {
    /// The agent may start standbys of ranks from now on.
    pub(crate) fn ranks_warm(&mut self, id: &str) {
        if let Some(container) = self.containers.get_mut(id) {
            container.ranks.warming.may = true;
            self.rank_warm(id);
        }
    }

    /// The attempt has run for long enough to know its ranks, unless the launcher is not up yet.
    pub(super) fn ranks_settle(&mut self, id: &str, launcher: ProcessId) {
        let container = self.containers.get(id);
        let Some(container) = container.filter(|container| container.ranks.warming.settles) else {
            return;
        };
        match container.machine.status().heartbeat {
            Heartbeat::Awaited | Heartbeat::Overdue => {
                self.standby_will(id, launcher, SEC, Does::Settles);
            }
            Heartbeat::Well | Heartbeat::Missed => self.ranks_warm(id),
        }
    }

    /// The agent starts the next standby of a rank, if one is due.
    pub(super) fn rank_warm(&mut self, id: &str) {
        let now = self.now;
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let (warming, waiting) = (&container.ranks.warming, &container.ranks.waiting);
        let is_due = warming.may && warming.not_before <= now && waiting.len() < warming.most;
        let mut stages = waiting.iter().map(|waits| waits.stage);
        if !is_due || !container.machine.serves_calls() || stages.any(|stage| stage == RankStandby::Imports) {
            return;
        }
        if self.rng.percent(5) {
            return self.rank_warms_later(id);
        }
        let process = self.process(0).that_waits();
        self.last_id += 1;
        let number = self.last_id;
        self.say(|| format!("{id}: a standby of a rank starts as process {number}"));
        if let Some(container) = self.containers.get_mut(id) {
            container.ranks.waiting.push(Waiting {
                number,
                process,
                stage: RankStandby::Imports,
            });
        }
        self.standby_imports(id, number);
    }

    fn rank_warms_later(&mut self, id: &str) {
        if let Some(container) = self.containers.get_mut(id) {
            container.ranks.warming.not_before = self.now + AGAIN;
            self.standby_will(id, 0, AGAIN, Does::WarmsAgain);
        }
    }

    /// A process has ended. True if it was a standby of a rank that waited.
    pub(crate) fn waiting_ended(&mut self, id: &str, number: ProcessId, exit: Exit) -> bool {
        let Some(container) = self.containers.get_mut(id) else {
            return false;
        };
        let waiting = &mut container.ranks.waiting;
        let Some(at) = waiting.iter().position(|waits| waits.number == number) else {
            return false;
        };
        waiting.swap_remove(at);
        self.say(|| format!("{id}: standby {number} of a rank ends: {exit:?}"));
        self.rank_warms_later(id);
        true
    }

    /// The agent ends all standbys of ranks that wait, and starts no other in this attempt.
    pub(crate) fn ranks_end(&mut self, id: &str) {
        if let Some(container) = self.containers.get_mut(id) {
            let ranks = &mut container.ranks;
            (ranks.warming.may, ranks.warming.settles) = (false, false);
            for waits in &mut ranks.waiting {
                waits.stage = RankStandby::Ending;
            }
        }
        self.waiting_kill(id, Time::MAX);
    }

    /// Sends SIGKILL to the standbys of ranks that wait and were started before this time.
    pub(crate) fn waiting_kill(&mut self, id: &str, before: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let mut ends = Vec::new();
        for waits in &mut container.ranks.waiting {
            let process = &mut waits.process;
            if !process.killed && process.born < before {
                process.killed = true;
                ends.push((waits.number, process.dies_after));
            }
        }
        for (number, after) in ends {
            self.process_will_end(id, number, after, Exit::Signal(9));
        }
    }
}
