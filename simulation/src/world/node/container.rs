//! Containers: PID 1, its other processes, and how they end.

use std::collections::BTreeMap;
use std::time::Duration;

use lockstep_node_daemon::worker::facts::Input as DaemonInput;
use lockstep_node_daemon::worker::types::{ContainerId, Ended, Exit as DaemonExit, LinkId};
use lockstep_pod_agent::machine::{BootNanos, Exit, Input, KillReport, Machine, Moment, Phase, UnixNanos};

use crate::time::{MS, SEC, Time, unix};
use crate::world::World;
use crate::world::event::{Event, NodeIndex, ProcessId};
use crate::world::node::ranks::Ranks;
use crate::world::node::standby::{Released, Standby};
use crate::world::node::worker::Process;

/// A worker across all of its pods: the child Job, and the index in it.
pub(crate) type Identity = (String, u32);

/// What only a container without an agent has.
#[derive(Debug, Clone)]
pub(crate) struct Plain {
    /// It has no agent on purpose, and not because the daemon was away.
    pub(crate) on_purpose: bool,
    /// Number of earlier containers of this worker in its pod.
    pub(crate) attempt: u32,
    /// When it was created, by its node's clock.
    pub(crate) created: i64,
    /// When it ended, by its node's clock.
    pub(crate) ended: i64,
}

/// One container instance.
#[derive(Debug)]
pub(crate) struct Container {
    pub(crate) node: NodeIndex,
    pub(crate) pod: String,
    pub(crate) jobset_uid: String,
    pub(crate) restart_attempt: i32,
    pub(crate) identity: Identity,
    /// The agent. Without an agent it is idle.
    pub(crate) machine: Machine,
    /// Set if there is no agent.
    pub(crate) plain: Option<Plain>,
    pub(crate) created: Time,
    /// PID 1 lives.
    pub(crate) lives: bool,
    /// The exit code, from the end of PID 1 until the container has ended.
    ending: i32,
    /// The exit code, and when the container ended.
    pub(crate) exit: Option<(i32, Time)>,
    /// A power failure has lost what containerd knew: it shows the container as never started.
    pub(crate) forgotten: bool,
    /// The last generation at which the worker was started here. Without an agent, the generation
    /// that it belongs to.
    pub(crate) started: Option<u64>,
    /// The worker itself, until it is reaped.
    pub(crate) worker: Option<ProcessId>,
    pub(crate) processes: BTreeMap<ProcessId, Process>,
    /// The last generation whose worker has run here.
    pub(crate) begun: Option<u64>,
    /// A process of the container that is none of the worker.
    pub(crate) standby: Option<Standby>,
    /// Set while the worker is a standby that has not confirmed its release.
    pub(crate) released: Option<Released>,
    /// What the worker starts through the agent, and the standbys for that.
    pub(crate) ranks: Ranks,
    /// Number of starts in this attempt: from standbys, and cold. None: they are not reported.
    pub(crate) starts: Option<(u32, u32)>,
    /// The daemon was asked to kill all processes from before this time.
    pub(crate) doomed_before: Time,
    /// The agent was told to exit.
    pub(crate) asked_to_exit: bool,
    /// The connection, and the life of the daemon that it is to.
    pub(crate) link: Option<(u32, LinkId)>,
    pub(crate) pause: Time,
    pub(crate) last_up: Time,
    pub(crate) last_down: Time,
}

impl Container {
    pub(crate) fn new(
        now: Time,
        clock_ahead: i64,
        (node, pod): (NodeIndex, String),
        (jobset_uid, restart_attempt, identity): (String, i32, Identity),
    ) -> Self {
        let moment = Moment {
            mono: Duration::ZERO,
            unix: UnixNanos(unix(now, clock_ahead)),
            boot: BootNanos(now),
        };
        Self {
            node,
            pod,
            jobset_uid,
            restart_attempt,
            identity,
            machine: Machine::new(moment),
            plain: None,
            created: now,
            lives: true,
            ending: 0,
            exit: None,
            forgotten: false,
            started: None,
            worker: None,
            processes: BTreeMap::new(),
            begun: None,
            standby: None,
            released: None,
            ranks: Ranks::default(),
            starts: None,
            doomed_before: 0,
            asked_to_exit: false,
            link: None,
            pause: 20 * MS,
            last_up: now,
            last_down: now,
        }
    }

    /// True if the worker runs and is not being stopped.
    pub(crate) fn runs_undisturbed(&self) -> bool {
        let released = self.plain.is_some() || self.machine.status().phase == Phase::Running;
        self.lives && self.worker.is_some() && released
    }
}

impl World {
    /// PID 1 is gone. The kernel kills all other processes; when the last one is gone, the
    /// container has ended.
    pub(crate) fn container_kill(&mut self, id: &str, code: i32) {
        self.note_end(id);
        let Some(container) = self.containers.get_mut(id).filter(|container| container.lives) else {
            return;
        };
        container.lives = false;
        container.ending = code;
        container.worker = None;
        container.released = None;
        self.agent_loses_link(id);
        self.standby_kill(id, Time::MAX);
        self.waiting_kill(id, Time::MAX);
        drop(self.processes_kill(id, Time::MAX));
        self.container_may_end(id);
    }

    /// Ends the container if neither PID 1 nor any other process of it is left.
    pub(crate) fn container_may_end(&mut self, id: &str) {
        let now = self.now;
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let waits = container.standby.is_some() || !container.ranks.waiting.is_empty();
        let is_empty = container.processes.is_empty() && !waits;
        if container.lives || container.exit.is_some() || !is_empty {
            return;
        }
        let code = container.ending;
        container.exit = Some((code, now));
        self.note_down(id);
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let (node, pod) = (container.node, container.pod.clone());
        self.say(|| format!("{id}: the container ends with {code}"));
        let at = unix(now, self.nodes[node].clock_ahead);
        if let Some(plain) = self
            .containers
            .get_mut(id)
            .and_then(|container| container.plain.as_mut())
        {
            plain.ended = at;
        }
        if self.nodes[node].up {
            self.containers_changed(node);
            let ended = Ended {
                exit: exit(code),
                at: UnixNanos(at),
            };
            self.notify_daemon(node, DaemonInput::Exited(ContainerId::from(id), ended));
            // The kubelet looks once a second, or is notified a little sooner.
            let seen = self.rng.span(2 * MS, SEC);
            self.kubelet_later(node, &pod, seen);
        }
    }

    /// PID 1 gets SIGTERM from outside the container.
    pub(crate) fn container_terminate(&mut self, id: &str) {
        if self
            .containers
            .get(id)
            .is_some_and(|container| container.plain.is_some())
        {
            self.processes_terminate(id);
            return;
        }
        if let Some(container) = self.containers.get_mut(id) {
            container.asked_to_exit = true;
        }
        let signal = Input::Signal {
            signo: 15,
            outside: true,
        };
        self.agent_feed(id, signal);
    }

    /// A process of the container has ended.
    pub(crate) fn process_ended(&mut self, id: &str, process: ProcessId, exit: Exit) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container
            .standby
            .take_if(|standby| standby.number == process)
            .is_some()
        {
            self.say(|| format!("{id}: standby {process} ends: {exit:?}"));
            let hopeless = self.rng.percent(5);
            self.agent_feed(id, Input::StandbyGone { hopeless });
            return self.container_may_end(id);
        }
        if self.waiting_ended(id, process, exit) {
            return self.container_may_end(id);
        }
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.processes.remove(&process).is_none() {
            return;
        }
        self.say(|| format!("{id}: process {process} ends: {exit:?}"));
        self.rank_ended(id, process, exit);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.worker == Some(process) && container.plain.is_some() {
            self.plain_ended(id, exit);
        } else if container.worker == Some(process) && container.released.is_some() {
            self.released_ended(id, exit);
        } else if container.worker == Some(process) {
            self.note_end(id);
            if let Some(container) = self.containers.get_mut(id) {
                container.worker = None;
            }
            self.agent_feed(id, Input::WorkerExited(exit));
        } else if container.lives && container.processes.is_empty() && container.machine.awaits_empty() {
            self.agent_feed(id, Input::TreeEmpty);
        }
        self.container_may_end(id);
    }

    /// Sends SIGKILL to every process from before this time that the agent may kill. Returns `None`
    /// if there is no process.
    pub(crate) fn processes_kill(&mut self, id: &str, before: Time) -> Option<KillReport> {
        let container = self.containers.get_mut(id)?;
        if container.processes.is_empty() {
            return None;
        }
        let by_agent = container.lives;
        let mut report = KillReport::default();
        let mut ends = Vec::new();
        for (number, process) in &mut container.processes {
            if by_agent && process.protected {
                report.denied = true;
                "foreign".clone_into(&mut report.note);
            } else if !process.killed && process.born < before {
                process.killed = true;
                ends.push((*number, process.dies_after));
            }
        }
        for (process, after) in ends {
            let container = id.to_owned();
            let exit = Exit::Signal(9);
            self.queue.push(
                self.now + after,
                Event::ProcessEnds {
                    container,
                    process,
                    exit,
                },
            );
        }
        Some(report)
    }

    /// The daemon kills processes that the agent may not kill, in several rounds: those from before
    /// the agent asked for it.
    pub(crate) fn host_kill(&mut self, id: &str, before: Time, rounds: u8) {
        let Some(container) = self.containers.get_mut(id).filter(|container| container.lives) else {
            return;
        };
        let runs = container.machine.status().phase == Phase::Running;
        let mut hit = false;
        for process in container.processes.values_mut() {
            if process.born < before {
                process.protected = false;
                hit |= !process.killed;
            }
        }
        if hit && runs {
            return self.violate(format!("{id}: the daemon kills a healthy worker"));
        }
        self.standby_kill(id, before);
        self.waiting_kill(id, before);
        drop(self.processes_kill(id, before));
        if rounds > 0 {
            let container = id.to_owned();
            self.queue.push(
                self.now + 5 * MS,
                Event::HostKill {
                    container,
                    before,
                    rounds: rounds - 1,
                },
            );
        }
    }
}

/// The end of a container as containerd reports it.
pub(crate) fn exit(code: i32) -> DaemonExit {
    DaemonExit {
        code,
        signal: if code > 128 { code - 128 } else { 0 },
    }
}
