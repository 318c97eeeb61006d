//! Nodes of a group without agents: daemons that obey, and a kubelet that restarts containers.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};

use super::world::{World, id};
use crate::restart::{Exit, Generation, GroupPhase, Incarnation, Phase, Report, RestartLevel};

pub(super) const KILLED: Exit = Exit { code: 137, signal: 9 };
pub(super) const CRASHED: Exit = Exit { code: 1, signal: 0 };

/// What a daemon has stored of one worker.
#[derive(Debug, Clone)]
struct Record {
    container: String,
    at: Generation,
    /// Later containers have this generation.
    next: Option<Generation>,
}

pub(super) struct Nodes {
    pub(super) world: World,
    workers: u32,
    records: BTreeMap<String, Record>,
    /// Workers whose container has ended: the kubelet will start the next.
    ended: BTreeSet<u32>,
    /// Containers that the daemons have stopped.
    pub(super) stops: u32,
    /// The pods of these containers, and the generation for which each was stopped.
    stopped: BTreeSet<(String, Generation)>,
}

impl Deref for Nodes {
    type Target = World;

    fn deref(&self) -> &World {
        &self.world
    }
}

impl DerefMut for Nodes {
    fn deref_mut(&mut self) -> &mut World {
        &mut self.world
    }
}

impl Nodes {
    /// A group in which all workers run at generation 0.
    pub(super) fn running(workers: u32, max: u32) -> Self {
        let mut nodes = Self::created(workers, max);
        for index in 0..workers {
            nodes.pod(index);
        }
        nodes.settle();
        assert_eq!(nodes.coordinator.phase(), GroupPhase::InSync);
        assert_eq!(nodes.running_at(Generation(0)), workers);
        nodes
    }

    /// The same before any pod exists.
    pub(super) fn created(workers: u32, max: u32) -> Self {
        let mut world = World::created(workers, max);
        for worker in world.observed.workers.values_mut() {
            worker.level = RestartLevel::Container;
        }
        Self {
            world,
            workers,
            records: BTreeMap::new(),
            ended: BTreeSet::new(),
            stops: 0,
            stopped: BTreeSet::new(),
        }
    }

    pub(super) fn running_at(&self, generation: Generation) -> u32 {
        let runs = |index: &u32| {
            self.live(*index)
                .is_some_and(|(_, report)| report.phase == Phase::Running && report.generation == generation)
        };
        u32::try_from((0..self.workers).filter(runs).count()).unwrap()
    }

    fn pod_of(&self, index: u32) -> Option<String> {
        let pods = &self.observed.workers[&id(index)].pods;
        pods.first().map(|pod| pod.uid.clone())
    }

    /// The running container of this index.
    pub(super) fn live(&self, index: u32) -> Option<(Incarnation, Report)> {
        let pod = self.pod_of(index)?;
        self.observed
            .reports
            .iter()
            .filter(|(incarnation, report)| {
                incarnation.pod_uid == pod && !matches!(report.phase, Phase::Lost(_))
            })
            .max_by_key(|(_, report)| report.since)
            .map(|(incarnation, report)| (incarnation.clone(), report.clone()))
    }

    /// Ends the container of this index.
    pub(super) fn end(&mut self, index: u32, exit: Exit) {
        if let Some((incarnation, report)) = self.live(index) {
            self.report(&incarnation, index, Phase::Lost(exit), report.generation);
            if exit.code != 0 {
                self.ended.insert(index);
            }
        }
    }

    /// The daemon of this index executes its orders.
    pub(super) fn daemon(&mut self, index: u32) {
        let (Some(desired), Some(pod)) = (self.desired.clone(), self.pod_of(index)) else {
            return;
        };
        let wanted = desired.generation;
        let Some((incarnation, report)) = self.live(index) else {
            if let Some(record) = self.records.get_mut(&pod)
                && record.at < wanted
            {
                record.next = record.next.max(Some(wanted));
            }
            return;
        };
        if report.phase == Phase::Unlinked {
            return;
        }
        let container = incarnation.container_id.clone();
        let before = self.records.get(&pod).cloned();
        let followed = before.as_ref().is_some_and(|record| record.at < wanted);
        let known = before
            .filter(|record| record.container == container)
            .map(|record| record.at);
        let mut write = |at, next| {
            let container = container.clone();
            self.records.insert(pod.clone(), Record { container, at, next });
        };
        match known {
            Some(at) if at < wanted => write(at, Some(wanted)),
            Some(_) => return,
            None if followed || desired.fresh.contains(&incarnation) => {
                write(wanted, None);
                self.report(&incarnation, index, Phase::Running, wanted);
                return;
            }
            None if desired.stale.contains(&incarnation) => write(Generation(wanted.0 - 1), Some(wanted)),
            None => return,
        }
        self.stops += 1;
        assert!(
            self.stopped.insert((pod, wanted)),
            "{container} was stopped for {wanted:?}, and so was the one before it"
        );
        self.end(index, KILLED);
    }

    /// The kubelet starts the next container of this index, if the last one has ended.
    pub(super) fn kubelet(&mut self, index: u32) {
        let Some(pod) = self.pod_of(index) else { return };
        if !self.ended.remove(&index) {
            return;
        }
        let incarnation = self.container(index);
        if let Some(record) = self.records.get_mut(&pod)
            && let Some(at) = record.next.take()
        {
            record.container.clone_from(&incarnation.container_id);
            record.at = at;
            self.report(&incarnation, index, Phase::Running, at);
        }
    }

    /// Removes the pod of this index.
    pub(super) fn lose(&mut self, index: u32) {
        self.ended.remove(&index);
        self.world.lose_pod(index);
    }

    pub(super) fn look(&mut self) {
        self.world.step();
        for index in 0..self.workers {
            if self.pod_of(index).is_none() {
                self.ended.remove(&index);
            }
        }
    }

    /// All parts act until nothing changes.
    pub(super) fn settle(&mut self) {
        for _ in 0..30 {
            let before = (self.observed.clone(), self.desired.clone());
            self.look();
            for index in 0..self.workers {
                self.daemon(index);
                self.kubelet(index);
            }
            if (self.observed.clone(), self.desired.clone()) == before {
                return;
            }
        }
        panic!("the group does not settle: {}", self.coordinator.phase());
    }
}
