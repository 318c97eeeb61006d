//! Decides which generation each container belongs to, and which containers to stop.
//!
//! Containers of a worker follow one another; the kubelet numbers them (the attempt). A container
//! belongs to the generation that its predecessor was stopped for, or, if that ended by itself, to
//! the next one that is ordered. The first container of a pod, and one whose predecessor ended at
//! the current generation, belong to none (`Fresh`) until the control plane names them. A container
//! of a generation below the desired one is stopped. An assignment is on disk before it is
//! reported, and before a container is stopped for it. Containers without a generation are stopped
//! only if they are named.

use std::collections::{BTreeMap, VecDeque};

use lockstep_mutants::mutant;

use super::facts::{Effects, Input, Moment, PlainContainer};
use super::record::{Journal, Record, Records};
use crate::worker::types::{
    BootNanos, ContainerId, Desired, Ended, Epoch, Exit, Generation, GroupUid, Incarnation, Pod, PodUid,
    StaleOrder, WorkerState,
};

mod pod;

use pod::{Container, PodEntry, Worker};

/// Most containers kept per worker: the newest, and those before it whose end may still matter.
const MAX_CONTAINERS: usize = 3;
/// Most ends kept of containers that no listing has shown yet.
const MAX_EARLY_ENDS: usize = 256;
/// Most groups that are remembered while none of their pods is known here.
const MAX_GROUPS: usize = 10_000;

/// The workers without an agent of this node.
#[derive(Debug)]
pub struct Table {
    revision: u64,
    /// The highest epoch under which a hub has welcomed this node.
    highest: Epoch,
    /// Records of pods that no listing has shown yet.
    former_records: BTreeMap<PodUid, Records>,
    pods: BTreeMap<PodUid, PodEntry>,
    groups: BTreeMap<GroupUid, Desired>,
    early_ends: VecDeque<(ContainerId, Ended)>,
}

/// The context of one fact that is being taken in.
struct Step<'a> {
    now: Moment,
    journal: &'a dyn Journal,
    effects: Effects,
}

impl Table {
    /// A table with the former daemon's records. New revisions start above `revision`, which must
    /// not be below any that an earlier daemon used since the machine booted.
    #[must_use]
    pub fn new(revision: u64, before: BTreeMap<PodUid, Records>) -> Self {
        let before = if mutant!(ForgetRecords) {
            BTreeMap::new()
        } else {
            before
        };
        Self {
            revision,
            highest: Epoch::default(),
            former_records: before,
            pods: BTreeMap::new(),
            groups: BTreeMap::new(),
            early_ends: VecDeque::new(),
        }
    }

    /// Every state that has been reported, as it is now.
    pub fn snapshot(&self) -> impl Iterator<Item = WorkerState> {
        let containers = self
            .pods
            .values()
            .flat_map(|entry| entry.workers.values())
            .flat_map(|worker| worker.containers.values());
        let reported = containers.filter_map(|container| container.reported.clone());
        reported.map(|state| WorkerState {
            epoch: state.epoch.max(self.highest),
            ..state
        })
    }

    /// Takes in one fact.
    pub fn apply(&mut self, input: Input, now: Moment, journal: &dyn Journal) -> Effects {
        let mut step = Step {
            now,
            journal,
            effects: Effects::default(),
        };
        match input {
            Input::Listed { pods, containers } => self.listed(pods, containers, &mut step),
            Input::Exited(id, ended) => self.exited(id, ended, &mut step),
            Input::StopOver(id) => {
                // Its end was seen before this, or it is stopped again: it may not have run yet
                // when the first stop came.
                if let Some((uid, container)) = self.find(&id) {
                    container.stopping = false;
                    self.settle(&uid, &mut step);
                }
            }
            Input::Welcomed(epoch) => self.highest = self.highest.max(epoch),
            Input::Desired(groups) => {
                for desired in groups {
                    self.desired(desired, &mut step);
                }
            }
            Input::Forget(group, epoch) => {
                let known = self.groups.get(&group).map(|known| known.epoch);
                if known.is_some_and(|known| known.max(self.highest) <= epoch) {
                    self.groups.remove(&group);
                }
            }
        }
        step.effects
    }

    /// The stop of this container did not start. A later fact asks for it again.
    pub fn not_stopped(&mut self, id: &ContainerId) {
        if let Some((_, container)) = self.find(id) {
            container.stopping = false;
        }
    }

    fn find(&mut self, id: &ContainerId) -> Option<(PodUid, &mut Container)> {
        self.pods.iter_mut().find_map(|(uid, entry)| {
            let mut containers = entry
                .workers
                .values_mut()
                .flat_map(|worker| worker.containers.values_mut());
            Some((uid.clone(), containers.find(|container| container.id == *id)?))
        })
    }

    fn exited(&mut self, id: ContainerId, ended: Ended, step: &mut Step<'_>) {
        let Some((uid, container)) = self.find(&id) else {
            // An earlier listing may still show it as running.
            self.early_ends.push_back((id, ended));
            if self.early_ends.len() > MAX_EARLY_ENDS {
                self.early_ends.pop_front();
            }
            return;
        };
        container.ended.get_or_insert(ended);
        self.settle(&uid, step);
    }

    fn listed(&mut self, pods: Vec<Pod>, containers: Vec<PlainContainer>, step: &mut Step<'_>) {
        let gone: Vec<PodUid> = self
            .pods
            .keys()
            .chain(self.former_records.keys())
            .filter(|uid| !pods.iter().any(|pod| pod.uid == **uid))
            .cloned()
            .collect();
        for uid in gone {
            self.drop_pod(&uid, step);
        }
        for pod in pods {
            let records = self.former_records.remove(&pod.uid).unwrap_or_default();
            self.pods.entry(pod.uid.clone()).or_insert_with(|| PodEntry {
                pod,
                records,
                workers: BTreeMap::new(),
            });
        }
        for entry in self.pods.values_mut() {
            for worker in entry.workers.values_mut() {
                for container in worker.containers.values_mut() {
                    if !containers.iter().any(|listed| listed.id == container.id) {
                        container.ended.get_or_insert(Ended {
                            exit: Exit::UNKNOWN,
                            at: step.now.wall,
                        });
                    }
                }
            }
        }
        for listed in containers {
            self.take_in(listed, step);
        }
        let uids: Vec<PodUid> = self.pods.keys().cloned().collect();
        for uid in uids {
            self.settle(&uid, step);
        }
    }

    fn take_in(&mut self, listed: PlainContainer, step: &mut Step<'_>) {
        let early = self.early_ends.iter().find(|(id, _)| *id == listed.id);
        let ended = early.map(|(_, ended)| *ended).or(listed.ended);
        let Some(entry) = self.pods.get_mut(&listed.pod) else {
            return;
        };
        let worker = entry.workers.entry(listed.name).or_default();
        let container = worker
            .containers
            .entry(listed.attempt)
            .or_insert_with(|| Container {
                id: listed.id.clone(),
                created: listed.created,
                began: step.now.since_boot(listed.created),
                ended,
                generation: None,
                stopping: false,
                reported: None,
            });
        if container.id == listed.id
            && let Some(ended) = ended
        {
            container.ended.get_or_insert(ended);
        }
        while worker.containers.len() > MAX_CONTAINERS {
            let first = worker.containers.pop_first();
            let first = first.and_then(|(_, container)| container.gone_from(&listed.pod));
            step.effects.gone.extend(first);
        }
    }

    fn drop_pod(&mut self, uid: &PodUid, step: &mut Step<'_>) {
        self.former_records.remove(uid);
        step.journal.erase(uid);
        let Some(entry) = self.pods.remove(uid) else {
            return;
        };
        let workers = entry.workers.into_values();
        let containers = workers.flat_map(|worker| worker.containers.into_values());
        step.effects
            .gone
            .extend(containers.filter_map(|container| container.gone_from(uid)));
        let group = entry.pod.group;
        if !self.pods.values().any(|other| other.pod.group == group) {
            self.groups.remove(&group);
        }
    }

    fn desired(&mut self, desired: Desired, step: &mut Step<'_>) {
        let group = desired.group.clone();
        let members: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(_, entry)| desired.is_of(&entry.pod))
            .map(|(uid, _)| uid.clone())
            .collect();
        let recorded = members
            .iter()
            .filter_map(|uid| self.pods.get(uid))
            .flat_map(|entry| entry.records.values())
            .map(|record| record.epoch)
            .max();
        let known = self.groups.get(&group).map(|known| known.epoch);
        let highest = known.max(recorded).unwrap_or_default().max(self.highest);
        if highest > desired.epoch {
            // The sender must learn of the higher epoch: report it, with a new revision.
            step.effects.stale.push(StaleOrder {
                group,
                epoch: desired.epoch,
                highest,
            });
            for uid in members {
                if let Some(entry) = self.pods.get_mut(&uid) {
                    entry.forget_reports();
                }
                self.settle(&uid, step);
            }
            return;
        }
        if members.is_empty() && known.is_none() && self.groups.len() >= MAX_GROUPS {
            return;
        }
        self.groups.insert(group, desired);
        for uid in members {
            self.settle(&uid, step);
        }
    }

    /// Brings one pod to what is desired, as far as this daemon can, and reports what has changed.
    fn settle(&mut self, uid: &PodUid, step: &mut Step<'_>) {
        let Some(entry) = self.pods.get_mut(uid) else {
            return;
        };
        let desired = self.groups.get(&entry.pod.group);
        let desired = desired.filter(|desired| desired.is_of(&entry.pod));
        let mut records = entry.records.clone();
        for (name, worker) in &entry.workers {
            follow(worker, name, uid, desired, step.now, &mut records);
        }
        if records != entry.records {
            match step.journal.write(uid, &records) {
                Ok(()) => entry.records = records,
                Err(error) => step.effects.unwritten.push((uid.clone(), error.to_string())),
            }
        }
        entry.assign();
        step.effects.stops.extend(entry.stops());
        entry.report(desired, self.highest, &mut self.revision, &mut step.effects);
    }
}

/// Records which generation each container of a worker belongs to, oldest first, and which one is
/// to end for a later generation.
fn follow(
    worker: &Worker,
    name: &str,
    pod: &PodUid,
    desired: Option<&Desired>,
    now: Moment,
    records: &mut Records,
) {
    let mut record = records.get(name).cloned();
    for (attempt, container) in &worker.containers {
        if record.as_ref().is_some_and(|record| *attempt <= record.attempt) {
            continue;
        }
        let Some(generation) = generation_of(container, pod, record.as_ref(), desired) else {
            continue;
        };
        record = Some(Record {
            container: container.id.clone(),
            attempt: *attempt,
            generation,
            next: None,
            next_since: BootNanos::default(),
            counted_restarts: record.as_ref().map_or(0, |record| record.counted_restarts),
            epoch: record.as_ref().map_or(Epoch::default(), |record| record.epoch),
        });
    }
    let Some(mut record) = record else { return };
    if let Some(desired) = desired {
        if desired.generation > record.generation && record.next < Some(desired.generation) {
            let runs = worker
                .containers
                .get(&record.attempt)
                .is_some_and(|container| container.id == record.container && container.ended.is_none());
            // If it has ended, its successor may already run for the former order.
            record.next_since = if runs || record.next.is_none() {
                BootNanos::default()
            } else {
                now.boot
            };
            record.next = Some(desired.generation);
        }
        record.counted_restarts = record.counted_restarts.max(desired.counted_restarts);
        record.epoch = record.epoch.max(desired.epoch);
    }
    records.insert(name.to_owned(), record);
}

/// The generation of a container that comes after the one of `record`.
fn generation_of(
    container: &Container,
    pod: &PodUid,
    record: Option<&Record>,
    desired: Option<&Desired>,
) -> Option<Generation> {
    if let Some(record) = record
        && let Some(next) = record.next
    {
        let older = container.began < record.next_since || mutant!(FollowersAreOld);
        return Some(if older { next.previous() } else { next });
    }
    let desired = desired?;
    if let Some(record) = record
        && desired.generation > record.generation
    {
        // Its predecessor ended by itself. If this one has ended too, the restart applies to its
        // successor.
        let ended = container.ended.is_some();
        return Some(if ended {
            record.generation
        } else {
            desired.generation
        });
    }
    let incarnation = Incarnation {
        pod: pod.clone(),
        container: container.id.clone(),
    };
    if desired.fresh.contains(&incarnation) {
        Some(desired.generation)
    } else if desired.stale.contains(&incarnation) {
        Some(desired.generation.previous())
    } else {
        None
    }
}

#[cfg(test)]
mod tests;
