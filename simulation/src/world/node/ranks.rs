//! Launchers: workers that start processes, their ranks, through the agent.
//!
//! A launcher starts a process for each rank, which calls the agent and waits for the answer. If a
//! standby is released for the call, that is the rank, and the caller stands in for it. The caller
//! ends when the rank ends, and the agent kills the rank if the caller ends first. Otherwise the
//! caller becomes the rank itself.
//!
//! Callers and ranks are processes of the worker's tree. Standbys that wait are none.

mod calls;
mod warming;

use lockstep_pod_agent::machine::Exit;
use lockstep_pod_agent::machine::calls::RankStandby;

use crate::time::{MS, SEC, Time, US};
use crate::world::World;
use crate::world::event::{Does, ProcessId};
use crate::world::node::worker::Process;

pub(crate) use calls::{Call, Stage};
pub(crate) use warming::Waiting;

/// When the agent knows the ranks of an attempt, and prepares for the next one in any case.
const SETTLED: Time = 30 * SEC;

/// The ranks of one container.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    /// How many the launcher has. 0: the worker is no launcher.
    pub(crate) number: u8,
    /// Standbys that belong to no attempt yet.
    pub(crate) waiting: Vec<Waiting>,
    /// Calls whose callers live.
    pub(crate) calls: Vec<Call>,
    /// Ranks that were killed because their callers had gone.
    dying: Vec<ProcessId>,
    warming: warming::Warming,
}

impl Ranks {
    /// Those of a worker that starts this many.
    pub(crate) fn of(number: u8) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    /// Number of ranks that run.
    pub(crate) fn running(&self) -> usize {
        self.calls.iter().filter(|call| call.runs()).count()
    }

    /// An attempt begins.
    pub(crate) fn begin(&mut self) {
        self.calls.clear();
        self.dying.clear();
        self.warming.begin();
    }
}

impl World {
    /// Number of ranks that workers of this Job start.
    pub(crate) fn ranks_of(&self, job: &str) -> u8 {
        let stage = job.split('-').nth(1).unwrap_or_default();
        self.scenario.ranks.get(stage).copied().unwrap_or(0)
    }

    /// Handles what a launcher, a caller or a standby of a rank does. False if the process is none
    /// of these.
    pub(crate) fn rank_does(&mut self, id: &str, number: ProcessId, does: Does) -> bool {
        let Some(container) = self.containers.get_mut(id).filter(|container| container.lives) else {
            return true;
        };
        let process = container.processes.get(&number);
        let is_alive = process.is_some_and(|process| !process.killed);
        let is_launcher = container.worker == Some(number) && is_alive;
        let ranks = &mut container.ranks;
        match does {
            Does::StartsRank(local_rank) if is_launcher => self.rank_starts(id, number, local_rank),
            Does::Settles if is_launcher => self.ranks_settle(id, number),
            Does::StartsRank(_) | Does::Settles => {}
            Does::Calls => self.agent_hears(id, number),
            Does::IsLate => self.rank_is_late(id, number),
            Does::WarmsAgain => self.rank_warm(id),
            Does::BecomesReady | Does::Dies => {
                let Some(waits) = ranks.waiting.iter_mut().find(|waits| waits.number == number) else {
                    return false;
                };
                match does {
                    _ if waits.process.killed => {}
                    Does::Dies => self.process_ended(id, number, Exit::Signal(9)),
                    _ => {
                        waits.stage = RankStandby::Ready;
                        self.rank_warm(id);
                    }
                }
            }
            Does::Confirms | Does::Refuses(_) => {
                if !ranks.calls.iter().any(|call| call.releases(number)) {
                    return false;
                }
                match does {
                    _ if !is_alive => {}
                    Does::Refuses(exit) => self.process_ended(id, number, exit),
                    _ => self.rank_confirms(id, number),
                }
            }
        }
        true
    }

    /// The launcher's code runs from now on.
    pub(crate) fn launcher_begins(&mut self, id: &str, launcher: ProcessId) {
        let container = self.containers.get(id);
        let number = container.map_or(0, |container| container.ranks.number);
        for local_rank in 0..number {
            let after = self.rng.span(MS, 3 * SEC);
            self.standby_will(id, launcher, after, Does::StartsRank(local_rank));
        }
        if number > 0 {
            self.standby_will(id, launcher, SETTLED, Does::Settles);
        }
    }

    /// The launcher starts a process that is to be this rank.
    fn rank_starts(&mut self, id: &str, launcher: ProcessId, local_rank: u8) {
        let process = self.process(0).that_calls();
        self.last_id += 1;
        let caller = self.last_id;
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let mut calls = container.ranks.calls.iter();
        let launcher = container.processes.get(&launcher);
        let Some(generation) = launcher.map(|launcher| launcher.generation) else {
            return;
        };
        if calls.any(|call| call.local_rank == local_rank) {
            return;
        }
        let process = Process {
            generation,
            local_rank: Some(local_rank),
            ..process
        };
        container.processes.insert(caller, process);
        container.ranks.calls.push(Call::new(caller, local_rank));
        self.say(|| format!("{id}: rank {local_rank} calls as process {caller}"));
        let after = self.rng.span(20 * US, 2 * MS);
        self.standby_will(id, caller, after, Does::Calls);
    }

    /// The launcher finds that a rank has ended. If that is no failure, or it makes up for it, it
    /// starts the rank again. Otherwise it fails itself, a bit later.
    fn launcher_hears(&mut self, id: &str, call: &Call, exit: Exit) {
        let container = self.containers.get(id);
        let Some(launcher) = container.and_then(|container| container.worker) else {
            return;
        };
        let (from, to) = match exit {
            _ if call.again => (US, MS),
            Exit::Code(0) => (10 * MS, 20 * SEC),
            _ => (10 * MS, 3 * SEC),
        };
        let after = self.rng.span(from, to);
        if call.again || exit == Exit::Code(0) {
            self.standby_will(id, launcher, after, Does::StartsRank(call.local_rank));
        } else {
            self.process_will_end(id, launcher, after, Exit::Code(1));
        }
    }

    /// A rank that runs, or its stand-in, is to fail instead of its launcher.
    pub(crate) fn rank_to_fail(&mut self, id: &str) -> Option<ProcessId> {
        let running = self.containers.get(id)?.ranks.running();
        if running == 0 || self.rng.percent(40) {
            return None;
        }
        // With leftovers, one failure of a worker has to happen.
        let may_make_up = self.scenario.leftovers.is_none();
        let (at, again) = (self.rng.index(running), self.rng.percent(50));
        let of_caller = self.rng.percent(40);
        let ranks = &mut self.containers.get_mut(id)?.ranks;
        let mut calls: Vec<&mut Call> = ranks.calls.iter_mut().filter(|call| call.runs()).collect();
        // Those that were standbys come first: there are fewer of them.
        calls.sort_by_key(|call| matches!(call.stage, Stage::Cold));
        let call = calls.into_iter().nth(at / 2)?;
        call.again = again && may_make_up;
        if of_caller { Some(call.caller) } else { call.rank() }
    }

    /// Returns an error if a rank of a launcher that runs does not.
    pub(crate) fn check_ranks_healthy(&self) -> Result<(), String> {
        let mut containers = self.containers.iter();
        let lacking = containers.find(|(_, container)| {
            let ranks = &container.ranks;
            container.runs_undisturbed() && ranks.running() < usize::from(ranks.number)
        });
        lacking.map_or(Ok(()), |(id, _)| Err(format!("not all ranks of {id} run")))
    }
}
