//! The table of workers of this node: facts go in, reports and targets come out. Pure.
//!
//! ```text
//!  NRI, CRI ──> pods, containers ─┐                  ┌─> reports  (to the control plane; only what changed)
//!  agents ────> Register, State ──┼─> Table::apply ──┼─> targets  (to agents; only what changed, and all on a new link)
//!  hub ───────> Desired, Forget ──┘                  └─> host kills
//! ```
//!
//! An incarnation is reported from the first State of its agent, or from the end of its container,
//! whichever comes first. Before that the daemon knows nothing of use to the control plane. A link
//! that goes down makes it `Unlinked`, with everything else as last known. `Lost` is entered only
//! when the end of the container, or its successor, was observed. A known exit later replaces an
//! unknown one, and `Done` replaces `Lost` if the last State of the agent arrives after the end of
//! its container.
//! `Lost` is kept while the pod lives, so that a control plane that was away still learns of it.
//! `Done` is never left.
//!
//! Revisions come from one counter of the whole daemon. It starts at the machine's uptime in
//! nanoseconds and grows by one per change. So a restarted daemon starts above everything that its
//! predecessor reported, whatever the wall clock does; a reboot ends all incarnations.

use std::collections::BTreeMap;

use lockstep_mutants::mutant;

use super::facts::{Effects, HostKill, Input};
use super::types::{
    AgentPhase, AgentState, BootNanos, ContainerId, Desired, Ended, Epoch, Exit, GroupUid, Incarnation,
    LinkId, PodUid, UnixNanos,
};

mod listing;
mod orders;
mod pods;
mod queries;
mod reports;
mod unsupervised;
mod worker;

use pods::{PodEntry, PodSource};
use worker::{AgentLimits, Link, Loss, Worker};

/// Most ended incarnations kept per worker of a living pod.
const MAX_ENDED: usize = 3;

/// The workers of this node.
#[derive(Debug)]
pub struct Table {
    revision: u64,
    tick: u64,
    /// The highest epoch under which a hub has welcomed this node. Epochs that agents name are
    /// ignored.
    welcomed_epoch: Epoch,
    pods: BTreeMap<PodUid, PodEntry>,
    workers: BTreeMap<ContainerId, Worker>,
    groups: BTreeMap<GroupUid, Desired>,
}

impl Table {
    /// An empty table. New revisions start above `revision`, which must not be below any that an
    /// earlier daemon used since the machine booted: an older hub compares them across streams.
    #[must_use]
    pub fn new(revision: u64) -> Self {
        Self {
            revision,
            tick: 0,
            welcomed_epoch: Epoch::default(),
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

    /// Takes in one fact.
    pub fn apply(&mut self, input: Input, now: UnixNanos) -> Effects {
        self.tick += 1;
        let mut effects = Effects::default();
        match input {
            Input::Synchronized { pods, containers } => {
                self.on_synchronized(pods, containers, now, &mut effects)
            }
            Input::Listed {
                mark,
                pods,
                containers,
            } => self.on_listed(mark, pods, containers, now, &mut effects),
            Input::WithoutAgents(containers) => self.on_found_without_agents(containers),
            Input::PodStarted(sandbox, pod) => self.add_pod(sandbox, pod, PodSource::Event, &mut effects),
            Input::PodRemoved(sandbox, uid) => self.remove_sandbox(&sandbox, &uid, &mut effects),
            Input::Created { pod, id, name } => {
                self.worker_or_insert(&id, &pod, &name);
                self.prune(&pod, &name, &mut effects);
            }
            Input::Removed(id) => self.on_removed(&id, now, &mut effects),
            Input::Exited(id, ended) => self.lose(&id, ended, "", &mut effects),
            Input::Registered {
                pod,
                id,
                name,
                link,
                pid,
            } => self.on_registered(&pod, &id, &name, link, pid, &mut effects),
            Input::State(id, link, state) => self.on_state(&id, link, state, &mut effects),
            Input::LinkDown(id, link) => self.on_link_down(&id, link, now, &mut effects),
            Input::StopOver(id) => self.on_stop_over(&id, &mut effects),
            Input::Welcomed(epoch) => self.on_welcomed(epoch),
            Input::Desired(groups) => {
                for desired in groups {
                    self.on_desired(desired, &mut effects);
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

    fn worker_or_insert(&mut self, id: &ContainerId, pod: &PodUid, name: &str) -> &mut Worker {
        self.workers
            .entry(id.clone())
            .or_insert_with(|| Worker::new(pod.clone(), name.to_owned()))
    }

    fn on_removed(&mut self, id: &ContainerId, now: UnixNanos, effects: &mut Effects) {
        let Some(worker) = self.workers.get(id) else {
            return;
        };
        if worker.seen.is_none() && worker.last.is_none() && worker.lost.is_none() {
            // Its creation failed: it never existed.
            self.drop_worker(id.clone(), effects);
            return;
        }
        self.lose(
            id,
            Ended {
                exit: Exit::UNKNOWN,
                at: now,
            },
            "the container was removed and its exit code is not known",
            effects,
        );
    }

    fn lose(&mut self, id: &ContainerId, ended: Ended, detail: &'static str, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        // The exit is often known later than the end: after a restart of containerd, NRI reports
        // before a listing does.
        let unknown = worker.lost.is_some_and(|lost| lost.ended.exit == Exit::UNKNOWN);
        if worker.lost.is_none() || unknown && ended.exit != Exit::UNKNOWN {
            worker.lost = Some(Loss { ended, detail });
            self.refresh(id, effects);
        }
    }

    /// Drops the oldest ended incarnations of a worker, beyond a few.
    fn prune(&mut self, pod: &PodUid, name: &str, effects: &mut Effects) {
        let mut ended: Vec<(UnixNanos, ContainerId)> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.pod == *pod && worker.name == name && worker.has_ended())
            .map(|(id, worker)| {
                let at = worker.lost.map_or(worker.down_since, |lost| lost.ended.at);
                (at, id.clone())
            })
            .collect();
        ended.sort();
        let surplus = ended.len().saturating_sub(MAX_ENDED);
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

    fn on_registered(
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
        let worker = self.worker_or_insert(id, pod, name);
        worker.seen.get_or_insert(tick);
        worker.without_agent = false;
        worker.link = Some(Link {
            id: link,
            pid,
            spoke: false,
        });
        worker.sent = None;
        self.retarget(id, effects);
    }

    fn on_welcomed(&mut self, epoch: Epoch) {
        mutant!(ForgetFormerLeaders => return);
        self.welcomed_epoch = self.welcomed_epoch.max(epoch);
    }

    fn on_state(&mut self, id: &ContainerId, link: LinkId, state: AgentState, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        let ended = worker.lost.is_some() || worker.is_done();
        let Some(current) = worker.link.as_mut().filter(|current| current.id == link) else {
            return;
        };
        let stale = worker
            .last
            .as_ref()
            .is_some_and(|last| last.revision > state.revision);
        // The end is final, whatever an agent says after it.
        if stale || ended && !matches!(state.phase, AgentPhase::Done(_)) {
            return;
        }
        current.spoke = true;
        // From now on only this daemon sends it targets.
        let limits = worker.limits.get_or_insert(AgentLimits::of(&state));
        if let Some(sent) = &worker.sent {
            limits.raise(sent);
        }
        if state.needs_host_kill {
            let unfenced = mutant!(KillUnfenced);
            let pod = self.pods.get(&worker.pod);
            effects.kills.push(HostKill {
                namespace: pod.map_or_else(String::new, |entry| entry.pod.namespace.clone()),
                container: id.clone(),
                agent_pid: current.pid,
                before: if unfenced {
                    Some(BootNanos(u64::MAX))
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

    fn on_link_down(&mut self, id: &ContainerId, link: LinkId, now: UnixNanos, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        if worker.link.as_ref().is_none_or(|current| current.id != link) {
            return;
        }
        if !self.pods.contains_key(&worker.pod) {
            // Its pod was never reported: the agent comes back if it matters.
            self.drop_worker(id.clone(), effects);
            return;
        }
        worker.link = None;
        worker.down_since = now;
        if mutant!(LinkDownIsLost) {
            worker.lost = Some(Loss {
                ended: Ended {
                    exit: Exit::UNKNOWN,
                    at: now,
                },
                detail: "",
            });
        }
        self.refresh(id, effects);
    }
}

#[cfg(test)]
mod tests;
