//! Worker processes: how they end by themselves, by SIGTERM and by SIGKILL.

use lockstep_pod_agent::machine::{Exit, Heartbeat, Input};

use crate::scenario::{Profile, TERMINAL_CODE};
use crate::time::{MS, SEC, Time, US};
use crate::world::World;
use crate::world::event::{Event, ProcessId};

/// A live process.
#[derive(Debug, Clone)]
pub(crate) struct Process {
    /// When it began to exist.
    pub(crate) born: Time,
    /// When it became the worker's process.
    pub(crate) since: Time,
    /// The generation at which it was started.
    pub(crate) generation: u64,
    /// When it ends after SIGTERM, and with which exit. `None` if it ignores SIGTERM.
    pub(super) at_sigterm: Option<(Time, Exit)>,
    /// How long it takes to die after SIGKILL.
    pub(crate) dies_after: Time,
    /// It has received SIGKILL.
    pub(crate) killed: bool,
    /// The agent may not kill it.
    pub(crate) protected: bool,
    /// It hangs between these times, and gives no heartbeat.
    pub(super) hangs: (Time, Time),
    /// The number of the launcher's rank that it is, or stands in for.
    pub(crate) local_rank: Option<u8>,
}

impl Process {
    /// The same process while it waits for the worker's next attempt: a plain process of the agent.
    pub(crate) fn that_waits(self) -> Self {
        Self {
            at_sigterm: Some((MS, Exit::Signal(15))),
            protected: false,
            ..self
        }
    }

    /// The same process while it waits for the answer to a call, or stands in for a rank: it ends
    /// when that ends.
    pub(crate) fn that_calls(self) -> Self {
        Self {
            at_sigterm: None,
            protected: false,
            ..self
        }
    }
}

impl World {
    /// The agent starts its worker cold.
    pub(crate) fn process_start(&mut self, id: &str, generation: u64) {
        self.check_start(id, generation);
        let stubborn = self.scenario.stubborn_percent;
        let with_child = self.rng.percent(stubborn);
        let process = self.process(generation);
        self.worker_begins(id, None, (process, with_child));
    }

    /// The worker's code runs from now on, in this process and perhaps a child of it. It is a new
    /// one, or has this number.
    pub(crate) fn worker_begins(
        &mut self,
        id: &str,
        number: Option<ProcessId>,
        (process, with_child): (Process, bool),
    ) {
        let generation = process.generation;
        let child = with_child.then(|| self.process(generation));
        let stage = self.stage_of(id);
        let work = self.scenario.work.get(&stage).copied();
        let crash = self.faults_on && self.rng.percent(self.scenario.crash_percent);
        self.last_id += 2;
        let (number, child_number) = (number.unwrap_or(self.last_id - 1), self.last_id);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        container.begun = Some(generation);
        container.worker = Some(number);
        container.processes.insert(number, process);
        if let Some(child) = child {
            container.processes.insert(child_number, child);
        }
        let identity = container.identity.clone();
        self.say(|| {
            format!(
                "{id}: {}[{}] starts at generation {generation} as process {number}",
                identity.0, identity.1
            )
        });
        self.launcher_begins(id, number);
        let first = self.rng.span(10 * MS, 2 * SEC);
        self.pulse_in(id, number, first);
        if let Some(timeout) = self.scenario.ready_timeout() {
            if self.faults_on
                && self.scenario.mute_percent > 0
                && self.rng.percent(self.scenario.mute_percent)
            {
                self.worker_hangs(id, None);
            }
            self.pulse_in(id, number, timeout);
        }
        if self.left_behind_in_pod(id) {
            let after = self.rng.span(10 * MS, 3 * SEC);
            self.process_will_end(id, number, after, Exit::Code(1));
        }
        if crash {
            let after = self.rng.span(10 * MS, 6 * SEC);
            let exit = self.some_failure();
            self.process_will_end(id, number, after, exit);
        }
        if let Some(work) = work {
            let after = work + self.rng.below(SEC);
            self.process_will_end(id, number, after, Exit::Code(0));
        }
    }

    pub(crate) fn process(&mut self, generation: u64) -> Process {
        let stubborn = self.scenario.stubborn_percent > 0 && self.rng.percent(40);
        let at_sigterm = if stubborn && self.rng.percent(40) {
            None
        } else {
            let after = if stubborn {
                self.rng.span(MS, 4 * SEC)
            } else {
                self.rng.span(US, 3 * MS)
            };
            let exit = [Exit::Signal(15), Exit::Code(143), Exit::Code(0), Exit::Code(1)][self.rng.index(4)];
            Some((after, exit))
        };
        let dies_after = if stubborn && self.rng.percent(20) {
            self.rng.span(MS, 20 * SEC)
        } else {
            self.rng.span(50 * US, 2 * MS)
        };
        Process {
            born: self.now,
            since: self.now,
            generation,
            at_sigterm,
            dies_after,
            killed: false,
            protected: stubborn && self.rng.percent(10),
            hangs: (0, 0),
            local_rank: None,
        }
    }

    /// A way in which a worker fails.
    pub(crate) fn some_failure(&mut self) -> Exit {
        match self.rng.below(10) {
            0..5 => Exit::Code(1),
            5..8 => Exit::Signal(9),
            8 => Exit::Signal(11),
            _ if self.scenario.profile == Profile::Wild => Exit::Code(TERMINAL_CODE),
            _ => Exit::Code(2),
        }
    }

    /// The process ends by itself after this time, if it still lives then.
    pub(crate) fn process_will_end(&mut self, id: &str, process: ProcessId, after: Time, exit: Exit) {
        let container = id.to_owned();
        self.queue.push(
            self.now + after,
            Event::ProcessEnds {
                container,
                process,
                exit,
            },
        );
    }

    /// The worker hangs for this time, or until it is killed.
    pub(crate) fn worker_hangs(&mut self, id: &str, time: Option<Time>) {
        let now = self.now;
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let process = container
            .worker
            .and_then(|worker| container.processes.get_mut(&worker));
        if let Some(process) = process
            && process.hangs.1 <= now
        {
            process.hangs = (now, time.map_or(Time::MAX, |time| now + time));
        }
    }

    fn pulse_in(&mut self, id: &str, process: ProcessId, after: Time) {
        let container = id.to_owned();
        self.queue
            .push(self.now + after, Event::Pulse { container, process });
    }

    /// The agent checks if its worker has given a heartbeat in time.
    pub(crate) fn pulse(&mut self, id: &str, process: ProcessId) {
        let now = self.now;
        let Some(container) = self.containers.get(id).filter(|container| container.lives) else {
            return;
        };
        let Some(worker) = container.processes.get(&process) else {
            return;
        };
        if container.worker != Some(process) {
            return;
        }
        let timeout = container.machine.heartbeat_timeout();
        let timeout = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let (from, until) = worker.hangs;
        let last = container.machine.status().heartbeat;
        let (heartbeat, next) = if timeout == 0 {
            (None, SEC)
        } else if now >= until {
            (Some(Heartbeat::Well), timeout)
        } else if matches!(last, Heartbeat::Awaited | Heartbeat::Overdue) {
            // Before the first heartbeat none can be missed.
            let ready = container.machine.ready_timeout();
            let ready = u64::try_from(ready.as_nanos()).unwrap_or(u64::MAX);
            let overdue = ready > 0 && now >= worker.since.saturating_add(ready);
            (overdue.then_some(Heartbeat::Overdue), timeout)
        } else if now < from + timeout {
            (None, from + timeout - now)
        } else {
            (Some(Heartbeat::Missed), timeout)
        };
        if let Some(heartbeat) = heartbeat {
            self.agent_feed(id, Input::Heartbeat(heartbeat));
        }
        self.pulse_in(id, process, next);
    }

    /// Sends SIGTERM to every process.
    pub(crate) fn processes_terminate(&mut self, id: &str) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let ends: Vec<(ProcessId, Time, Exit)> = container
            .processes
            .iter()
            .filter_map(|(number, process)| {
                let (after, exit) = process.at_sigterm?;
                Some((*number, after, exit))
            })
            .collect();
        for (process, after, exit) in ends {
            self.process_will_end(id, process, after, exit);
        }
    }

    /// Name of the replicatedJob of this container's worker.
    pub(crate) fn stage_of(&self, id: &str) -> String {
        let job = self
            .containers
            .get(id)
            .map(|container| container.identity.0.as_str());
        // `<jobset>-<replicatedJob>-<index>`
        let parts = job.map(|job| job.split('-').nth(1).unwrap_or_default());
        parts.unwrap_or_default().to_owned()
    }
}
