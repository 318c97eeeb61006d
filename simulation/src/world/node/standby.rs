//! Standbys: processes that an agent starts ahead, for the worker's next attempt.
//!
//! A standby that waits is a process of the container, and none of the worker. It may end at any
//! time. Once it is released it belongs to the worker's tree. It confirms that it goes on, early,
//! late or never, or it ends without having run anything of the worker.

use std::time::Duration;

use lockstep_pod_agent::machine::{Exit, Input};

use crate::scenario::Profile;
use crate::time::{MS, SEC, Time};
use crate::world::World;
use crate::world::event::{Does, Event, ProcessId};
use crate::world::node::worker::Process;

/// The shortest and the longest time that the imports take.
const IMPORTS: (Time, Time) = (50 * MS, 15 * SEC);
/// The longest time that it takes to confirm, which is too long.
const LATE: Time = 3 * SEC;
/// How it ends if it refuses to go on.
pub(super) const REFUSED: Exit = Exit::Code(121);

/// A standby that waits, or still imports.
#[derive(Debug, Clone)]
pub(crate) struct Standby {
    pub(crate) number: ProcessId,
    pub(crate) process: Process,
    pub(crate) ready: bool,
}

/// A standby that was released and has not confirmed that it goes on. It is the worker's process.
#[derive(Debug, Clone)]
pub(crate) struct Released {
    pub(crate) number: ProcessId,
    pub(crate) at: Time,
    /// How long it takes to die after SIGKILL.
    pub(crate) dies_after: Time,
    /// The last generation at which the worker was started before: in this container, and at all.
    pub(crate) before: (Option<u64>, Option<u64>),
}

impl World {
    /// True if workers of this Job have standbys.
    pub(crate) fn has_standbys(&self, job: &str) -> bool {
        let standbys = &self.scenario.standbys;
        !standbys.is_empty()
            && job
                .split('-')
                .nth(1)
                .is_some_and(|stage| standbys.contains(stage))
    }

    /// The agent starts a standby.
    pub(crate) fn standby_warm(&mut self, id: &str) -> Option<Input> {
        let container = self.containers.get(id)?;
        if container.standby.is_some() || !self.has_standbys(&container.identity.0) {
            // The one that is there ends, and the agent learns that. Or only ranks have standbys.
            return None;
        }
        if self.rng.percent(5) {
            let hopeless = self.rng.percent(20);
            return Some(Input::StandbyGone { hopeless });
        }
        let process = self.process(0).that_waits();
        self.last_id += 1;
        let number = self.last_id;
        self.say(|| format!("{id}: a standby starts as process {number}"));
        let container = self.containers.get_mut(id)?;
        container.standby = Some(Standby {
            number,
            process,
            ready: false,
        });
        self.standby_imports(id, number);
        None
    }

    /// It becomes ready after a while. Some end before that, or later.
    pub(super) fn standby_imports(&mut self, id: &str, number: ProcessId) {
        let ready = self.rng.span(IMPORTS.0, IMPORTS.1);
        let fate = self.rng.below(10);
        self.standby_will(id, number, ready, Does::BecomesReady);
        if fate < 2 {
            let after = self.rng.span(0, [ready, 60 * SEC][usize::from(fate > 0)]);
            self.standby_will(id, number, after, Does::Dies);
        }
    }

    pub(super) fn standby_will(&mut self, id: &str, process: ProcessId, after: Time, does: Does) {
        let container = id.to_owned();
        self.queue.push(
            self.now + after,
            Event::Standby {
                container,
                process,
                does,
            },
        );
    }

    pub(crate) fn standby_does(&mut self, id: &str, number: ProcessId, does: Does) {
        if self.rank_does(id, number, does) {
            return;
        }
        let Some(container) = self.containers.get_mut(id).filter(|container| container.lives) else {
            return;
        };
        let waits = container
            .standby
            .as_mut()
            .filter(|standby| standby.number == number && !standby.process.killed);
        let is_released = container
            .released
            .as_ref()
            .is_some_and(|released| released.number == number)
            && container
                .processes
                .get(&number)
                .is_some_and(|process| !process.killed);
        match (does, waits) {
            (Does::BecomesReady, Some(standby)) => {
                standby.ready = true;
                let ahead = self.rng.span(MS, 10 * SEC);
                self.say(|| format!("{id}: standby {number} is ready"));
                let ahead = Duration::from_nanos(ahead);
                self.agent_feed(id, Input::StandbyReady { ahead });
            }
            (Does::Dies, Some(_)) => self.process_ended(id, number, Exit::Signal(9)),
            (Does::Confirms, None) if is_released => self.standby_confirms(id),
            (Does::Refuses(exit), None) if is_released => self.process_ended(id, number, exit),
            _ => {}
        }
    }

    /// The agent releases its standby as the worker of this generation.
    pub(crate) fn standby_release(&mut self, id: &str, generation: u64) -> Option<Input> {
        self.check_release(id);
        if self.rng.percent(5) {
            // It cannot be told. The agent counts it as refused while it is made to end.
            self.standby_kill(id, Time::MAX);
            return Some(Input::StandbyRefused(Exit::Signal(9)));
        }
        let container = self.containers.get(id)?;
        let identity = container.identity.clone();
        let before = (container.started, self.truth.started_at(&identity));
        self.check_start(id, generation);
        let at = self.now;
        let container = self.containers.get_mut(id)?;
        let Standby {
            number, mut process, ..
        } = container.standby.take()?;
        (process.generation, process.since) = (generation, at);
        container.released = Some(Released {
            number,
            at,
            dies_after: process.dies_after,
            before,
        });
        container.processes.insert(number, process);
        container.worker = Some(number);
        self.say(|| {
            format!(
                "{id}: {}[{}] is to start at generation {generation} from standby {number}",
                identity.0, identity.1
            )
        });
        if let Some((after, does)) = self.some_answer(LATE) {
            self.standby_will(id, number, after, does);
        }
        None
    }

    /// What a standby does once it is released, and when: at `late` at the latest. None: nothing.
    pub(super) fn some_answer(&mut self, late: Time) -> Option<(Time, Does)> {
        Some(match self.rng.below(20) {
            0..12 => (self.rng.span(MS, 50 * MS), Does::Confirms),
            12..14 => (self.rng.span(50 * MS, late), Does::Confirms),
            14..16 => (self.rng.span(MS, 50 * MS), Does::Refuses(REFUSED)),
            16..18 => {
                let exit = [Exit::Signal(9), Exit::Signal(11), Exit::Code(0), Exit::Code(1)];
                let exit = exit[self.rng.index(4)];
                (self.rng.span(0, late), Does::Refuses(exit))
            }
            _ => return None,
        })
    }

    /// The released standby goes on: from here on it runs the worker's code.
    fn standby_confirms(&mut self, id: &str) {
        self.check_confirm_time(id);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let Some(Released { number, .. }) = container.released.take() else {
            return;
        };
        let Some(waited) = container.processes.get(&number).cloned() else {
            return;
        };
        self.truth.from_standby += 1;
        let mut process = self.process(waited.generation);
        (process.born, process.since) = (waited.born, waited.since);
        let with_child = self.rng.percent(self.scenario.stubborn_percent);
        self.worker_begins(id, Some(number), (process, with_child));
        self.agent_feed(id, Input::Started);
    }

    /// The released standby has ended. What it has said may not have been read yet.
    pub(crate) fn released_ended(&mut self, id: &str, exit: Exit) {
        self.check_confirm_time(id);
        let may_have_run = self.scenario.profile == Profile::Wild && self.scenario.leftovers.is_none();
        let has_run = may_have_run && exit != REFUSED && self.rng.percent(10);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let Some(Released { before, .. }) = container.released.take() else {
            return;
        };
        if has_run {
            container.begun = container.started;
            self.say(|| format!("{id}: it had gone on"));
            self.note_end(id);
            if let Some(container) = self.containers.get_mut(id) {
                container.worker = None;
            }
            self.agent_feed(id, Input::Started);
            self.agent_feed(id, Input::WorkerExited(exit));
            return;
        }
        container.worker = None;
        let identity = container.identity.clone();
        let released_at = std::mem::replace(&mut container.started, before.0);
        self.truth.take_back(&identity, released_at, before.1);
        self.agent_feed(id, Input::StandbyRefused(exit));
    }

    /// Sends SIGKILL to the standby that waits, if it was started before this time.
    pub(crate) fn standby_kill(&mut self, id: &str, before: Time) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let Some(standby) = &mut container.standby else {
            return;
        };
        let process = &mut standby.process;
        if process.killed || process.born >= before {
            return;
        }
        process.killed = true;
        let (number, after) = (standby.number, process.dies_after);
        self.process_will_end(id, number, after, Exit::Signal(9));
    }

    /// Sends SIGKILL to the released standby, which does not confirm that it goes on.
    pub(crate) fn standby_give_up(&mut self, id: &str) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let Some(number) = container.released.as_ref().map(|released| released.number) else {
            return;
        };
        let Some(process) = container.processes.get_mut(&number) else {
            return;
        };
        if !process.killed {
            process.killed = true;
            let after = process.dies_after;
            self.process_will_end(id, number, after, Exit::Signal(9));
        }
    }
}
