//! Agents: the real state machine, between a daemon that may restart and a tree of processes.

use std::time::Duration;

use lockstep_node_daemon::worker::facts::Input as DaemonInput;
use lockstep_node_daemon::worker::types::{
    AgentPhase, AgentState, ContainerId, Exit as DaemonExit, LinkId, PodUid, Starts as DaemonStarts,
    Target as DaemonTarget,
};
use lockstep_pod_agent::machine::{
    Action, BootNanos, Epoch, Exit, Input, Moment, Phase, Source, Status, Target, UnixNanos,
};

use crate::time::{MS, SEC, Time, US, unix};
use crate::world::World;
use crate::world::event::Event;
use crate::world::node::container::Container;

impl World {
    fn moment(&self, container: &Container) -> Moment {
        Moment {
            mono: Duration::from_nanos(self.now - container.created),
            unix: UnixNanos(unix(self.now, self.nodes[container.node].clock_ahead)),
            boot: BootNanos(self.now),
        }
    }

    /// Gives the machine an input and carries out its actions, and does the same with the inputs
    /// that these produce.
    pub(crate) fn agent_feed(&mut self, id: &str, input: Input) {
        let mut inputs = vec![input];
        while let Some(input) = inputs.pop() {
            let Some(container) = self.containers.get(id).filter(|container| container.lives) else {
                return;
            };
            let moment = self.moment(container);
            let Some(container) = self.containers.get_mut(id) else {
                return;
            };
            let before = container.machine.status().clone();
            let actions = container.machine.step(moment, input);
            self.agent_checked(id, &before);
            self.check_standby(id, &actions);
            for action in actions {
                if let Some(input) = self.agent_act(id, action) {
                    inputs.insert(0, input);
                }
            }
            if inputs.is_empty()
                && self.containers.get(id).is_some_and(|container| {
                    container.lives && container.processes.is_empty() && container.machine.awaits_empty()
                })
            {
                inputs.push(Input::TreeEmpty);
            }
        }
        self.check_starts(id);
        self.agent_wake(id);
    }

    fn agent_wake(&mut self, id: &str) {
        let Some(container) = self.containers.get(id).filter(|container| container.lives) else {
            return;
        };
        if let Some(deadline) = container.machine.deadline() {
            let at = container.created + u64::try_from(deadline.as_nanos()).unwrap_or(u64::MAX);
            let container = id.to_owned();
            self.queue
                .push(at.max(self.now + US), Event::AgentTick { container });
        }
    }

    pub(crate) fn agent_tick(&mut self, id: &str) {
        let due = self.containers.get(id).is_some_and(|container| {
            let mono = Duration::from_nanos(self.now - container.created);
            container.lives && container.machine.deadline().is_some_and(|at| at <= mono)
        });
        if due {
            self.agent_feed(id, Input::Tick);
        }
    }

    fn agent_act(&mut self, id: &str, action: Action) -> Option<Input> {
        match action {
            Action::Report => self.agent_report(id),
            Action::Start { generation, source } => {
                self.note_attempt(id, source);
                if source == Source::Standby {
                    return self.standby_release(id, generation.0);
                }
                self.process_start(id, generation.0);
                return Some(Input::Started);
            }
            Action::Terminate => self.processes_terminate(id),
            Action::Kill { .. } => return self.processes_kill(id, Time::MAX).map(Input::Killed),
            Action::Forward(_) => self.processes_terminate(id),
            Action::Say(_) => {}
            Action::Warm => {
                self.ranks_warm(id);
                return self.standby_warm(id);
            }
            Action::EndStandbys => {
                self.standby_kill(id, Time::MAX);
                self.ranks_end(id);
            }
            Action::GiveUpStandby => self.standby_give_up(id),
            Action::Exit { code, flush } => {
                self.say(|| format!("{id}: the agent exits with {code}"));
                if !flush && self.rng.percent(50) {
                    // Its last report was not sent.
                    self.agent_loses_link(id);
                }
                self.container_kill(id, code);
            }
        }
        None
    }

    fn agent_report(&mut self, id: &str) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let Some((daemon, link)) = container.link else {
            return;
        };
        let (node, last, status) = (
            container.node,
            container.last_up,
            container.machine.status().clone(),
        );
        if !self.daemon_lives(node, daemon) {
            return;
        }
        let at = (self.now + self.rng.span(20 * US, 500 * US)).max(last + 1);
        if let Some(container) = self.containers.get_mut(id) {
            container.last_up = at;
        }
        let (container, status) = (id.to_owned(), Box::new(status));
        self.queue.push(
            at,
            Event::AgentState {
                container,
                daemon,
                link,
                status,
            },
        );
    }

    /// The agent's state has reached its daemon.
    pub(crate) fn agent_state(&mut self, id: &str, daemon: u32, link: LinkId, status: &Status) {
        let found = self.containers.get(id);
        if let Some((node, index)) = found.map(|container| (container.node, container.identity.1)) {
            let mut state = agent_state(status);
            if self.scenario.liars && index == 0 {
                state.epoch = Epoch(u64::MAX / 2);
            }
            self.daemon_input(node, daemon, DaemonInput::State(id.into(), link, state));
        }
    }

    pub(crate) fn agent_connect_later(&mut self, id: &str) {
        let with_agent = |container: &&mut Container| container.lives && container.plain.is_none();
        let Some(container) = self.containers.get_mut(id).filter(with_agent) else {
            return;
        };
        let pause = container.pause;
        container.pause = (pause * 2).min(SEC);
        let at = self.now + pause / 2 + self.rng.below(pause / 2);
        let container = id.to_owned();
        self.queue.push(at, Event::AgentConnect { container });
    }

    pub(crate) fn agent_connect(&mut self, id: &str) {
        let Some(container) = self
            .containers
            .get_mut(id)
            .filter(|container| container.lives && container.link.is_none())
        else {
            return;
        };
        let node = container.node;
        let daemon = &mut self.nodes[node].daemon;
        if !daemon.runs {
            self.agent_connect_later(id);
            return;
        }
        container.pause = 20 * MS;
        let (link, life) = (daemon.new_link(), daemon.life);
        container.link = Some((life, link));
        let registered = DaemonInput::Registered {
            pod: PodUid::from(container.pod.as_str()),
            id: ContainerId::from(id),
            name: "worker".to_owned(),
            link,
            pid: 1,
        };
        let at = (self.now + self.rng.span(50 * US, 2 * MS)).max(container.last_up + 1);
        container.last_up = at;
        self.queue.push(
            at,
            Event::DaemonInput {
                node,
                daemon: life,
                input: registered,
            },
        );
        self.agent_report(id);
    }

    /// The agent or its daemon is gone, and the link with it.
    pub(crate) fn agent_loses_link(&mut self, id: &str) {
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        let Some((daemon, link)) = container.link.take() else {
            return;
        };
        let (node, at) = (container.node, container.last_up.max(self.now) + 1);
        container.last_up = at;
        if self.daemon_lives(node, daemon) {
            let input = DaemonInput::LinkDown(ContainerId::from(id), link);
            self.queue.push(at, Event::DaemonInput { node, daemon, input });
        }
        self.agent_connect_later(id);
    }

    /// The daemon sends a target.
    pub(crate) fn send_target(&mut self, id: &str, link: LinkId, target: DaemonTarget) {
        let Some(last) = self.containers.get(id).map(|container| container.last_down) else {
            return;
        };
        let at = (self.now + self.rng.span(20 * US, 500 * US)).max(last + 1);
        if let Some(container) = self.containers.get_mut(id) {
            container.last_down = at;
        }
        let target = Box::new(Target {
            epoch: target.epoch,
            generation: target.generation,
            counted_restarts: target.counted_restarts,
            release: target.release,
            start_fresh: target.start_fresh,
            grace: Duration::from_millis(u64::from(target.grace_ms)),
            heartbeat_timeout: Duration::from_millis(u64::from(target.heartbeat_timeout_ms)),
            ready_timeout: Duration::from_millis(u64::from(target.ready_timeout_ms)),
            terminal_codes: target.terminal_codes,
        });
        let container = id.to_owned();
        self.queue.push(
            at,
            Event::AgentTarget {
                container,
                link,
                target,
            },
        );
    }

    pub(crate) fn agent_target(&mut self, id: &str, link: LinkId, target: Target) {
        let current = self
            .containers
            .get(id)
            .is_some_and(|container| container.link.is_some_and(|(_, current)| current == link));
        if current {
            self.agent_feed(id, Input::Target(target));
        }
    }
}

/// The agent's state as its daemon reads it.
fn agent_state(status: &Status) -> AgentState {
    let exit = |exit: Exit| DaemonExit {
        code: exit.code(),
        signal: exit.signal(),
    };
    AgentState {
        phase: match status.phase {
            Phase::Fresh => AgentPhase::Fresh,
            Phase::Starting => AgentPhase::Starting,
            Phase::Running => AgentPhase::Running,
            Phase::Stopping => AgentPhase::Stopping,
            Phase::Parked => AgentPhase::Parked,
            Phase::Exited(ended) => AgentPhase::Exited(exit(ended)),
            Phase::Done => AgentPhase::Done(exit(Exit::Code(0))),
        },
        generation: status.generation,
        epoch: status.epoch,
        counted_restarts: status.counted_restarts,
        revision: status.revision,
        since: status.since,
        detail: String::new(),
        heartbeat: status.heartbeat,
        needs_host_kill: status.needs_host_kill,
        host_kill_before: Some(status.host_kill_before).filter(|before| *before != BootNanos::default()),
        starts: status.starts.map(|starts| DaemonStarts {
            standby: starts.standby,
            cold: starts.cold,
            ahead_ms: u32::try_from(starts.ahead.as_millis()).unwrap_or(u32::MAX),
        }),
        standbys: None,
        progress: status.progress.clone(),
    }
}
