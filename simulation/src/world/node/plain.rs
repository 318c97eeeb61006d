//! Workers without an agent, on purpose or because the daemon was away when they were created:
//! their containers, which the kubelet starts, and the node daemon's real table of them.
//!
//! A listing through CRI is a moment old. It shows a container and the one before it, which is all
//! that the kubelet keeps. Requests to stop a container die with the daemon that makes them, and
//! some are refused. The daemon's records outlive it, but not the machine.
//!
//! A policy of the cluster may have changed pods after their template was checked. The daemon sees
//! that from the start and puts no agent into such a pod, and the kubelet starts its containers
//! again by itself, or not at all. Workers in other pods of the group have agents.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;

use lockstep_api::annotations;
use lockstep_node_daemon::plain::facts::{Effects, Input, Moment, PlainContainer};
use lockstep_node_daemon::plain::record::{Journal, Record, Records};
use lockstep_node_daemon::worker::facts;
use lockstep_node_daemon::worker::types::{
    AgentPhase, BootNanos, ContainerId, Ended, Phase, PodUid, UnixNanos,
};
use lockstep_pod_agent::machine::Exit;

use crate::rng::Rng;
use crate::scenario::{Profile, Scenario};
use crate::time::{MS, SEC, unix};
use crate::world::World;
use crate::world::event::{Event, NodeIndex};
use crate::world::node::container::exit;
use crate::world::node::pod_fact;
use crate::world::replica::group::durable_of;

/// Number of containers of a worker that the kubelet keeps.
const KEPT: usize = 2;

/// The records of a node, in memory.
#[derive(Debug, Default)]
pub(crate) struct Memory(RefCell<BTreeMap<PodUid, Records>>);

impl Memory {
    pub(crate) fn all(&self) -> BTreeMap<PodUid, Records> {
        self.0.borrow().clone()
    }

    /// The record of this container, if it is the newest one whose generation is known.
    fn of(&self, pod: &str, container: &str) -> Option<Record> {
        let all = self.0.borrow();
        let mut records = all.get(&PodUid::from(pod))?.values();
        records
            .find(|record| record.container.as_str() == container)
            .cloned()
    }
}

impl Journal for Memory {
    fn write(&self, pod: &PodUid, records: &Records) -> io::Result<()> {
        self.0.borrow_mut().insert(pod.clone(), records.clone());
        Ok(())
    }

    fn erase(&self, pod: &PodUid) {
        self.0.borrow_mut().remove(pod);
    }
}

impl Scenario {
    /// In an eighth of the scenarios in which Lockstep or everything fails, a policy changes the
    /// pods of a replicatedJob. In half of these the containers are never restarted. RayClusters,
    /// gangs, Jobs with a time limit and scenarios in which other workers have no agents are left
    /// out. Nothing else is drawn from `rng`.
    pub(crate) fn choose_changed(&mut self, rng: &mut Rng) {
        let other =
            self.elastic || self.gang.is_some() || self.time_limited || self.plain || self.daemons_late;
        if rng.below(8) > 0 || self.profile == Profile::Clean || other || self.leftovers.is_some() {
            return;
        }
        let jobs = &mut self.jobset.spec.replicated_jobs;
        let index = rng.index(jobs.len());
        let job = &mut jobs[index];
        if let Some(metadata) = &mut job.template.metadata
            && let Some(annotations) = &mut metadata.annotations
        {
            annotations.remove(annotations::RESTART_SCOPE);
        }
        let pod = job.template.spec.as_mut();
        if let Some(pod) = pod.and_then(|spec| spec.template.spec.as_mut()) {
            let policy = if rng.below(2) == 0 { "Never" } else { "OnFailure" };
            pod.restart_policy = Some(policy.to_owned());
        }
        self.changed = Some(job.name.clone());
        // All other workers have agents.
        self.plugin_required = true;
    }

    /// True if workers are without an agent on purpose.
    pub(crate) fn has_plain(&self) -> bool {
        self.plain || self.changed.is_some()
    }
}

impl World {
    /// True if a policy changes the pods of this Job.
    pub(crate) fn is_changed(&self, job: &str) -> bool {
        let stage = job.split('-').nth(1);
        stage.is_some() && stage == self.scenario.changed.as_deref()
    }

    /// The daemon's record of a container.
    pub(crate) fn record_of(&self, id: &str) -> Option<Record> {
        let container = self.containers.get(id)?;
        self.nodes[container.node].records.of(&container.pod, id)
    }

    /// The container's first process starts.
    pub(crate) fn plain_start(&mut self, id: &str) {
        self.check_container_start(id);
        let stubborn = self.scenario.stubborn_percent;
        let with_child = self.rng.percent(stubborn);
        // A worker that lacks its agent belongs to no generation. No other may be released beside
        // it at a later one.
        let durable = self.api.jobset.as_ref().map(|jobset| durable_of(jobset));
        let since = durable.filter(|_| !self.scenario.plain);
        let since = since.map_or(0, |durable| durable.generation.0);
        let process = self.process(since);
        let child = with_child.then(|| self.process(since));
        let work = self.scenario.work.get(&self.stage_of(id)).copied();
        let crash = self.faults_on && self.rng.percent(self.scenario.crash_percent);
        self.last_id += 2;
        let (number, child_number) = (self.last_id - 1, self.last_id);
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        container.worker = Some(number);
        container.processes.insert(number, process);
        if let Some(child) = child {
            container.processes.insert(child_number, child);
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
        if let Some(node) = self.containers.get(id).map(|container| container.node) {
            self.containers_changed(node);
        }
    }

    /// The first process of a container has ended by itself, or by a signal from outside.
    pub(crate) fn plain_ended(&mut self, id: &str, exit: Exit) {
        let code = exit.code();
        if code != 0 {
            self.note_loss(id);
            self.note_failure_beside(id);
        }
        self.note_end(id);
        self.container_kill(id, code);
    }

    /// containerd reports that a container has started or ended: a listing follows soon.
    pub(crate) fn containers_changed(&mut self, node: NodeIndex) {
        let daemon = &self.nodes[node].daemon;
        if self.scenario.has_plain() && daemon.runs {
            let daemon = daemon.life;
            let at = self.now + self.rng.span(50 * MS, 60 * MS);
            self.queue.push(at, Event::DaemonListPlain { node, daemon });
        }
    }

    pub(crate) fn daemon_list_plain(&mut self, node: NodeIndex, daemon: u32) {
        if !self.daemon_lives(node, daemon) {
            return;
        }
        let local = || self.nodes[node].local.values().filter(|pod| pod.plain);
        let pods = local().map(|pod| pod_fact(pod).1).collect();
        let containers = local()
            .flat_map(|pod| {
                let kept = pod.containers.iter().rev().take(KEPT);
                kept.map(move |id| (pod, id))
            })
            .filter_map(|(pod, id)| {
                let container = self.containers.get(id)?;
                let plain = container.plain.as_ref()?;
                Some(PlainContainer {
                    pod: pod.uid.as_str().into(),
                    name: "worker".to_owned(),
                    id: id.as_str().into(),
                    attempt: plain.attempt,
                    created: UnixNanos(plain.created),
                    ended: container.exit.map(|(code, _)| Ended {
                        exit: exit(code),
                        at: UnixNanos(plain.ended),
                    }),
                })
            })
            .collect();
        let arrives = self.now + self.rng.span(MS, 30 * MS);
        let listing = &mut self.nodes[node].daemon.listed;
        *listing = arrives.max(*listing + 1);
        let (at, input) = (*listing, Input::Listed { pods, containers });
        self.queue.push(at, Event::DaemonPlain { node, daemon, input });
    }

    pub(crate) fn daemon_plain(&mut self, node: NodeIndex, daemon: u32, input: Input) {
        if !self.daemon_lives(node, daemon) {
            return;
        }
        let now = Moment {
            wall: UnixNanos(unix(self.now, self.nodes[node].clock_ahead)),
            boot: BootNanos(unix(self.now, 0).unsigned_abs()),
        };
        let at = &mut self.nodes[node];
        let effects = at.daemon.plain.apply(input, now, &at.records);
        self.plain_effects(node, effects);
    }

    fn plain_effects(&mut self, node: NodeIndex, effects: Effects) {
        for state in &effects.reports {
            let id = state.incarnation.container.as_str();
            self.say(|| {
                let (phase, generation) = (state.phase.name(), state.generation);
                format!(
                    "node-{node}: {} {id} is {phase} at {generation} (revision {})",
                    state.pod_name, state.revision
                )
            });
            if state.phase == Phase::Agent(AgentPhase::Running) {
                self.check_assigned(id, state.generation.0);
            }
        }
        self.nodes[node].daemon.outbox.put(effects.reports);
        for id in effects.stops {
            self.stop_soon(node, id.as_str());
        }
        self.daemon_flush(node);
    }

    /// The daemon asks containerd to stop a container.
    pub(crate) fn stop_soon(&mut self, node: NodeIndex, id: &str) {
        let daemon = self.nodes[node].daemon.life;
        let at = self.now + self.rng.span(MS, 20 * MS);
        let container = id.to_owned();
        self.queue.push(
            at,
            Event::StopContainer {
                node,
                daemon,
                container,
            },
        );
    }

    /// True if a container was created without the agent that it should have.
    pub(crate) fn is_without_agent(&self, id: &str) -> bool {
        let plain = self
            .containers
            .get(id)
            .and_then(|container| container.plain.as_ref());
        plain.is_some_and(|plain| !plain.on_purpose)
    }

    /// The daemon's request reaches containerd, which carries it out or refuses it, and may take
    /// long to answer.
    pub(crate) fn stop_container(&mut self, node: NodeIndex, daemon: u32, id: String) {
        if !self.daemon_lives(node, daemon) {
            return;
        }
        let faults = self.faults_on && self.scenario.stubborn_percent > 0;
        let refused = faults && self.rng.percent(10);
        let answered = if faults && self.rng.percent(10) {
            11 * SEC
        } else {
            SEC
        };
        if !refused {
            let lives = self.containers.get(&id).is_some_and(|container| container.lives);
            if lives {
                self.check_stop(&id);
                self.say(|| format!("{id}: the container is stopped for a restart"));
            }
            self.container_kill(&id, 137);
        }
        let input = facts::Input::StopOver(ContainerId::from(id.as_str()));
        let event = Event::DaemonInput { node, daemon, input };
        self.queue.push(self.now + answered, event);
    }
}
