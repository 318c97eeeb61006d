//! The table of workers of this node: facts go in, reports and targets come out. Pure.
//!
//! ```text
//!  NRI, CRI ──> pods, containers ─┐                  ┌─> reports  (to the control plane; only what changed)
//!  agents ────> Register, State ──┼─> Table::apply ──┼─> targets  (to agents; only what changed, and all on a new link)
//!  hub ───────> Desired, Forget ──┘                  └─> host kills
//! ```
//!
//! An incarnation is reported from the first State of its agent, or from the end of its container, whichever comes first; before that the daemon
//! knows nothing that the control plane could use. A link that goes down makes it `Unlinked` with everything else as last known. `Lost` is
//! entered only when the end of the container was observed, is never left (an exit that becomes known later replaces one that was not), and is kept while the pod lives, so that a control plane that was
//! away still hears of it. `Done` is never left either.
//!
//! Revisions come from one counter of the whole daemon. It starts at the machine's uptime in nanoseconds and grows by one per change, so a daemon
//! that was restarted starts above everything that its predecessor reported, whatever the wall clock does; a reboot ends all incarnations.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_mutants::mutant;

use super::facts::{Effects, HostKill, Input};
use super::plan;
use super::types::{
    AgentPhase, AgentState, ContainerId, Desired, Exit, GroupUid, Heartbeat, Incarnation, LinkId, Phase, Pod,
    PodUid, SandboxId, Target, WorkerState,
};

mod listing;
mod queries;
mod unsupervised;

use unsupervised::Beside;

/// Ended incarnations kept per worker of a living pod.
const KEPT_ENDED: usize = 3;
/// Groups that are remembered before any of their pods is known here.
const MAX_GROUPS: usize = 10_000;

#[derive(Debug)]
struct PodEntry {
    pod: Pod,
    sandboxes: BTreeSet<SandboxId>,
    /// Listed at this tick: from then on its absence from a later listing means that it is gone.
    listed: Option<u64>,
    /// The last generation for which a container without its agent was stopped, or at which its group ran beside it, by name.
    stopped: BTreeMap<String, u64>,
}

#[derive(Debug)]
struct Link {
    id: LinkId,
    pid: i32,
    /// Whether its first State has come: until then the last known one is another link's.
    spoke: bool,
}

#[derive(Debug)]
struct Worker {
    pod: PodUid,
    name: String,
    /// Known to exist at this tick: from then on its absence from a later listing means that it is gone.
    seen: Option<u64>,
    /// It was made without the agent that it should have.
    without_agent: bool,
    /// It is being stopped from outside.
    stopping: bool,
    /// The generation that it was stopped for from outside, where it should have ended since.
    stopped_for: Option<u64>,
    /// What its group did while it ran without its agent.
    beside: Beside,
    link: Option<Link>,
    /// When the last link went down.
    down_since: i64,
    last: Option<AgentState>,
    /// The highest that its agent can know of.
    known: Option<Known>,
    lost: Option<(Exit, i64, &'static str)>,
    reported: Option<WorkerState>,
    told: Option<Target>,
}

/// What an agent can know of: what it knew when this daemon first heard of it, and what it was told since. More than that it has made up.
#[derive(Debug, Clone, Copy)]
struct Known {
    generation: u64,
    counter: u64,
}

impl Known {
    fn of(state: &AgentState) -> Self {
        Self {
            generation: state.generation,
            counter: state.counter,
        }
    }

    fn told(&mut self, target: &Target) {
        self.generation = self.generation.max(target.generation);
        self.counter = self.counter.max(target.counter);
    }
}

impl Worker {
    fn new(pod: PodUid, name: String) -> Self {
        Self {
            pod,
            name,
            seen: None,
            without_agent: false,
            stopping: false,
            stopped_for: None,
            beside: Beside::Unknown,
            link: None,
            down_since: 0,
            last: None,
            known: None,
            lost: None,
            reported: None,
            told: None,
        }
    }

    fn is_done(&self) -> bool {
        self.last
            .as_ref()
            .is_some_and(|state| matches!(state.phase, AgentPhase::Done(_)))
    }

    fn ended(&self) -> bool {
        self.lost.is_some() || (self.is_done() && self.link.is_none())
    }

    /// Phase, since when, and for people why.
    fn phase(&self) -> Option<(Phase, i64, String)> {
        if let Some(last) = &self.last
            && self.is_done()
        {
            return Some((Phase::Agent(last.phase), last.since, last.detail.clone()));
        }
        if let Some((exit, since, detail)) = self.lost {
            return Some((Phase::Lost(exit), since, detail.to_owned()));
        }
        let last = self.last.as_ref()?;
        if self.link.as_ref().is_some_and(|link| link.spoke) {
            return Some((Phase::Agent(last.phase), last.since, last.detail.clone()));
        }
        let exit = Phase::Agent(last.phase).exit();
        Some((Phase::Unlinked(exit), self.down_since, last.detail.clone()))
    }
}

/// The workers of this node.
#[derive(Debug)]
pub struct Table {
    revision: u64,
    tick: u64,
    /// The highest epoch under which a hub has welcomed this node: whatever agents say of epochs counts for nothing.
    highest: u64,
    pods: BTreeMap<PodUid, PodEntry>,
    workers: BTreeMap<ContainerId, Worker>,
    groups: BTreeMap<GroupUid, Desired>,
}

impl Table {
    /// An empty table. `revision` is below every revision to come and not below any that an earlier daemon gave out since the machine booted: a hub
    /// of before compares them over streams.
    #[must_use]
    pub fn new(revision: u64) -> Self {
        Self {
            revision,
            tick: 0,
            highest: 0,
            pods: BTreeMap::new(),
            workers: BTreeMap::new(),
            groups: BTreeMap::new(),
        }
    }

    /// A point in time before which a listing that starts now is complete.
    pub fn mark(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    /// Takes in one fact. `now` is in nanoseconds since the Unix epoch.
    pub fn apply(&mut self, input: Input, now: i64) -> Effects {
        self.tick += 1;
        let mut effects = Effects::default();
        match input {
            Input::Synchronized { pods, containers } => {
                self.synchronized(pods, containers, now, &mut effects)
            }
            Input::Listed {
                mark,
                pods,
                containers,
            } => self.listed(mark, pods, containers, now, &mut effects),
            Input::WithoutAgents(containers) => self.found_without_agents(containers),
            Input::PodStarted(sandbox, pod) => self.add_pod(sandbox, pod, false, &mut effects),
            Input::PodRemoved(sandbox, uid) => self.remove_sandbox(&sandbox, &uid, &mut effects),
            Input::Created { pod, id, name } => {
                self.worker(&id, &pod, &name);
                self.prune(&pod, &name, &mut effects);
            }
            Input::Removed(id) => self.removed(&id, now, &mut effects),
            Input::Exited(id, exit, at) => self.lose(&id, exit, at, "", &mut effects),
            Input::Registered {
                pod,
                id,
                name,
                link,
                pid,
            } => self.registered(&pod, &id, &name, link, pid, &mut effects),
            Input::State(id, link, state) => self.state(&id, link, state, &mut effects),
            Input::LinkDown(id, link) => self.link_down(&id, link, now, &mut effects),
            Input::StopOver(id) => self.stop_over(&id, &mut effects),
            Input::Welcomed(epoch) => self.welcomed(epoch),
            Input::Desired(groups) => {
                for desired in groups {
                    self.desired(desired, &mut effects);
                }
            }
            Input::Forget(group, epoch) => {
                if self.groups.contains_key(&group) && self.epoch_of(&group) <= epoch {
                    self.groups.remove(&group);
                }
            }
        }
        effects
    }

    fn worker(&mut self, id: &ContainerId, pod: &PodUid, name: &str) -> &mut Worker {
        self.workers
            .entry(id.clone())
            .or_insert_with(|| Worker::new(pod.clone(), name.to_owned()))
    }

    fn add_pod(&mut self, sandbox: SandboxId, pod: Pod, listed: bool, effects: &mut Effects) {
        let uid = pod.uid.clone();
        let tick = self.tick;
        if !self.pods.contains_key(&uid) {
            effects.pods_known.push(uid.clone());
        }
        let entry = self.pods.entry(uid.clone()).or_insert_with(|| PodEntry {
            pod: pod.clone(),
            sandboxes: BTreeSet::new(),
            listed: None,
            stopped: BTreeMap::new(),
        });
        entry.pod = pod;
        entry.sandboxes.insert(sandbox);
        if listed {
            entry.listed.get_or_insert(tick);
        }
        // Agents may have connected before the pod was known.
        for id in self.workers_of(&uid) {
            self.refresh(&id, effects);
            self.retarget(&id, effects);
        }
    }

    fn workers_of(&self, pod: &PodUid) -> Vec<ContainerId> {
        self.workers
            .iter()
            .filter(|(_, worker)| worker.pod == *pod)
            .map(|(id, _)| id.clone())
            .collect()
    }

    fn remove_sandbox(&mut self, sandbox: &SandboxId, uid: &PodUid, effects: &mut Effects) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.sandboxes.remove(sandbox);
            if entry.sandboxes.is_empty() {
                self.drop_pod(uid, effects);
            }
        }
    }

    fn drop_pod(&mut self, uid: &PodUid, effects: &mut Effects) {
        for id in self.workers_of(uid) {
            self.drop_worker(id, effects);
        }
        let Some(entry) = self.pods.remove(uid) else {
            return;
        };
        effects.pods_gone.push(uid.clone());
        let group = entry.pod.group;
        if !self.pods.values().any(|other| other.pod.group == group) {
            self.groups.remove(&group);
        }
    }

    fn removed(&mut self, id: &ContainerId, now: i64, effects: &mut Effects) {
        let Some(worker) = self.workers.get(id) else {
            return;
        };
        if worker.seen.is_none() && worker.last.is_none() && worker.lost.is_none() {
            // Its creation failed: it never was.
            self.drop_worker(id.clone(), effects);
            return;
        }
        self.lose(
            id,
            Exit::UNKNOWN,
            now,
            "the container was removed and its exit code is not known",
            effects,
        );
    }

    fn lose(&mut self, id: &ContainerId, exit: Exit, at: i64, detail: &'static str, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        // How it ended is often known later than that it did: after a restart of containerd, NRI speaks before a listing.
        let unknown = worker.lost.is_some_and(|(known, _, _)| known == Exit::UNKNOWN);
        if worker.lost.is_none() || unknown && exit != Exit::UNKNOWN {
            worker.lost = Some((exit, at, detail));
            self.refresh(id, effects);
        }
    }

    /// Drops the oldest ended incarnations of a worker, beyond a few.
    fn prune(&mut self, pod: &PodUid, name: &str, effects: &mut Effects) {
        let mut ended: Vec<(i64, ContainerId)> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.pod == *pod && worker.name == name && worker.ended())
            .map(|(id, worker)| (worker.lost.map_or(worker.down_since, |(_, at, _)| at), id.clone()))
            .collect();
        ended.sort();
        let surplus = ended.len().saturating_sub(KEPT_ENDED);
        for (_, id) in ended.into_iter().take(surplus) {
            self.drop_worker(id, effects);
        }
    }

    fn drop_worker(&mut self, id: ContainerId, effects: &mut Effects) {
        let worker = self.workers.remove(&id);
        if let Some(worker) = worker.filter(|worker| worker.reported.is_some()) {
            effects.gone.push(Incarnation {
                pod: worker.pod,
                container: id.clone(),
            });
        }
        effects.dropped.push(id);
    }

    fn registered(
        &mut self,
        pod: &PodUid,
        id: &ContainerId,
        name: &str,
        link: LinkId,
        pid: i32,
        effects: &mut Effects,
    ) {
        if self.is_of_another(id, pod) {
            return;
        }
        let tick = self.tick;
        let worker = self.worker(id, pod, name);
        worker.seen.get_or_insert(tick);
        worker.without_agent = false;
        worker.link = Some(Link {
            id: link,
            pid,
            spoke: false,
        });
        worker.told = None;
        self.retarget(id, effects);
    }

    fn welcomed(&mut self, epoch: u64) {
        mutant!(ForgetFormerLeaders => return);
        self.highest = self.highest.max(epoch);
    }

    fn state(&mut self, id: &ContainerId, link: LinkId, state: AgentState, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        let Some(current) = worker.link.as_mut().filter(|current| current.id == link) else {
            return;
        };
        let stale = worker
            .last
            .as_ref()
            .is_some_and(|last| last.revision > state.revision);
        if stale || worker.lost.is_some() && !matches!(state.phase, AgentPhase::Done(_)) {
            return;
        }
        current.spoke = true;
        // From then on it is told here, and by nobody else.
        let known = worker.known.get_or_insert(Known::of(&state));
        if let Some(told) = &worker.told {
            known.told(told);
        }
        if state.needs_host_kill {
            let unfenced = mutant!(KillUnfenced);
            let pod = self.pods.get(&worker.pod);
            effects.kills.push(HostKill {
                namespace: pod.map_or_else(String::new, |entry| entry.pod.namespace.clone()),
                container: id.clone(),
                agent_pid: current.pid,
                before: if unfenced {
                    u64::MAX
                } else {
                    state.host_kill_before
                },
            });
        } else if worker.last.as_ref().is_some_and(|last| last.needs_host_kill) && !mutant!(KillUnfenced) {
            effects.spared.push(id.clone());
        }
        worker.last = Some(state);
        self.refresh(id, effects);
    }

    fn link_down(&mut self, id: &ContainerId, link: LinkId, now: i64, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        if worker.link.as_ref().is_none_or(|current| current.id != link) {
            return;
        }
        if !self.pods.contains_key(&worker.pod) {
            // Nobody has told of its pod: it comes back if it matters.
            self.drop_worker(id.clone(), effects);
            return;
        }
        worker.link = None;
        worker.down_since = now;
        if mutant!(LinkDownIsLost) {
            worker.lost = Some((Exit::UNKNOWN, now, ""));
        }
        self.refresh(id, effects);
    }

    fn desired(&mut self, desired: Desired, effects: &mut Effects) {
        let group = desired.group.clone();
        let members: Vec<ContainerId> = self
            .workers
            .iter()
            .filter(|(_, worker)| {
                self.pods
                    .get(&worker.pod)
                    .is_some_and(|entry| desired.is_of(&entry.pod))
            })
            .map(|(id, _)| id.clone())
            .collect();
        let known = self.epoch_of(&group);
        if known > desired.epoch {
            // Whoever sent this has to learn of the higher epoch: report it, with a new revision.
            effects.stale.push((group, desired.epoch, known));
            for id in members {
                if let Some(worker) = self.workers.get_mut(&id) {
                    worker.reported = None;
                }
                self.refresh(&id, effects);
            }
            return;
        }
        if members.is_empty() && !self.groups.contains_key(&group) && self.groups.len() >= MAX_GROUPS {
            return;
        }
        self.groups.insert(group, desired);
        for id in members {
            self.retarget(&id, effects);
        }
        self.stop_without_agents(effects);
    }

    /// Sends the target of this worker, if it is linked and the target is new to it.
    fn retarget(&mut self, id: &ContainerId, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        let Some(entry) = self.pods.get(&worker.pod) else {
            return;
        };
        let desired = self.groups.get(&entry.pod.group);
        let desired = desired.filter(|desired| desired.is_of(&entry.pod));
        let (Some(link), Some(desired)) = (&worker.link, desired) else {
            return;
        };
        let incarnation = Incarnation {
            pod: worker.pod.clone(),
            container: id.clone(),
        };
        let target = plan::target(desired, &entry.pod.job, &worker.name, &incarnation);
        if worker.told.as_ref() != Some(&target) {
            effects.targets.push((id.clone(), link.id, target.clone()));
            let mut believed = false;
            if let (Some(known), Some(last)) = (&mut worker.known, &worker.last) {
                let before = known.generation;
                known.told(&target);
                believed = before < last.generation && before < known.generation;
            }
            worker.told = Some(target);
            if believed {
                self.refresh(id, effects);
            }
        }
    }

    /// Reports this worker, if anything about it has changed since the last time.
    fn refresh(&mut self, id: &ContainerId, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        let (Some(entry), Some((phase, since, detail))) = (self.pods.get(&worker.pod), worker.phase()) else {
            return;
        };
        let last = worker.last.as_ref();
        let known = worker.known;
        let generation = |last: &AgentState| {
            let highest = known.map_or(last.generation, |known| known.generation);
            last.generation.min(highest)
        };
        let counter = |last: &AgentState| {
            let highest = known.map_or(last.counter, |known| known.counter);
            last.counter.min(highest)
        };
        let epoch = self
            .groups
            .get(&entry.pod.group)
            .filter(|desired| desired.is_of(&entry.pod))
            .map_or(0, |desired| desired.epoch)
            .max(self.highest);
        // The broken variant passes on what the agent says.
        let epoch = match last {
            Some(last) if mutant!(BelieveAgentsEpoch) => epoch.max(last.epoch),
            _ => epoch,
        };
        let mut state = WorkerState {
            group: entry.pod.group.clone(),
            job: entry.pod.job.clone(),
            index: entry.pod.index,
            container: worker.name.clone(),
            incarnation: Incarnation {
                pod: worker.pod.clone(),
                container: id.clone(),
            },
            namespace: entry.pod.namespace.clone(),
            pod_name: entry.pod.name.clone(),
            phase,
            generation: last.map_or(0, generation),
            epoch,
            counter: last.map_or(0, counter),
            revision: worker.reported.as_ref().map_or(0, |reported| reported.revision),
            since,
            detail,
            heartbeat: match phase {
                Phase::Agent(_) => last.map_or(Heartbeat::Well, |last| last.heartbeat),
                Phase::Unlinked(_) | Phase::Lost(_) => Heartbeat::Well,
            },
            released_at: worker.released_at(),
        };
        if worker.reported.as_ref() != Some(&state) {
            self.revision += 1;
            state.revision = self.revision;
            worker.reported = Some(state.clone());
            effects.reports.push(state);
        }
    }
}

#[cfg(test)]
mod tests;
