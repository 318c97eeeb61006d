//! A tiny world for the coordinator: pods, agents that obey, and an API server that confirms writes
//! on demand.

use std::collections::{BTreeMap, BTreeSet};

use crate::restart::{
    Announcement, Condemned, Coordinator, Desired, Durable, DurablePhase, Epoch, Exit, Generation,
    GroupPhase, Heartbeat, Identity, Incarnation, Observed, Output, Phase, PodFact, Report, UnixNanos,
    Worker, WorkerRestart,
};

pub(super) struct World {
    pub(super) coordinator: Coordinator,
    pub(super) observed: Observed,
    pub(super) now: UnixNanos,
    /// status.restarts: how often the Jobs were recreated.
    pub(super) recreations: u32,
    pub(super) writes: usize,
    pub(super) announcements: Vec<Announcement>,
    pub(super) desired: Option<Desired>,
    /// True if lost pods may be replaced, and the pods to delete.
    pub(super) replace: bool,
    pub(super) condemned: Vec<Condemned>,
    /// Confirm status writes at once.
    pub(super) confirm: bool,
    /// How often the worker process of each incarnation has started.
    pub(super) starts: BTreeMap<Incarnation, u32>,
    serial: u32,
}

/// The generations of all workers.
pub(super) fn generations(world: &World) -> Vec<u64> {
    let workers = 0..u32::try_from(world.observed.workers.len()).unwrap();
    workers.map(|index| world.current(index).1.generation.0).collect()
}

/// True if all workers run.
pub(super) fn all_run(world: &World) -> bool {
    let workers = 0..u32::try_from(world.observed.workers.len()).unwrap();
    workers
        .map(|index| world.current(index).1.phase)
        .all(|phase| phase == Phase::Running)
}

pub(super) fn id(index: u32) -> Identity {
    Identity {
        job: "js-workers-0".into(),
        index,
        container: "worker".into(),
    }
}

impl World {
    /// A JobSet of `workers` that may restart `max` times, with all workers running at generation
    /// 0.
    pub(super) fn running(workers: u32, max: u32) -> Self {
        let mut world = Self::created(workers, max);
        for index in 0..workers {
            world.pod(index);
        }
        world.settle();
        assert_eq!(world.coordinator.phase(), GroupPhase::InSync);
        assert!(
            world.phases().iter().all(|phase| *phase == Phase::Running),
            "{:?}",
            world.phases()
        );
        world
    }

    /// The same before any pod exists.
    pub(super) fn created(workers: u32, max: u32) -> Self {
        let mut observed = Observed::default();
        observed.policy.max_restarts = max;
        for index in 0..workers {
            observed.workers.insert(
                id(index),
                Worker {
                    stage: "workers".into(),
                    ..Worker::default()
                },
            );
        }
        let now = UnixNanos(1_000_000_000);
        Self {
            coordinator: Coordinator::recover(Epoch(1), &Durable::default(), 15_000, now),
            observed,
            now,
            recreations: 0,
            writes: 0,
            announcements: Vec::new(),
            desired: None,
            replace: false,
            condemned: Vec::new(),
            confirm: true,
            starts: BTreeMap::new(),
            serial: 0,
        }
    }

    pub(super) fn tick(&mut self, millis: u64) {
        self.now = self.now.plus_millis(millis);
    }

    /// Adds a new pod with a fresh agent for this index, in place of the old one.
    pub(super) fn pod(&mut self, index: u32) -> Incarnation {
        self.serial += 1;
        let uid = format!("pod-{index}-{}", self.serial);
        let node = format!("node-{}", index % 2);
        self.observed.heard_nodes.insert(node.clone());
        let worker = self.observed.workers.get_mut(&id(index)).unwrap();
        let fact = PodFact {
            uid: uid.clone(),
            name: uid.clone(),
            node: Some(node),
            running: true,
            node_lost: false,
            deleting: false,
        };
        worker.pods = vec![fact];
        self.container(index)
    }

    /// Adds a new container with a fresh agent to the pod of this index.
    pub(super) fn container(&mut self, index: u32) -> Incarnation {
        self.serial += 1;
        let pod = self.observed.workers[&id(index)].pods[0].clone();
        let incarnation = Incarnation {
            pod_uid: pod.uid,
            container_id: format!("c-{}", self.serial),
        };
        self.report(&incarnation, index, Phase::Fresh, Generation(0));
        incarnation
    }

    /// Removes the pod of this index and its reports.
    pub(super) fn lose_pod(&mut self, index: u32) {
        let pods = std::mem::take(&mut self.observed.workers.get_mut(&id(index)).unwrap().pods);
        self.observed
            .reports
            .retain(|incarnation, _| pods.iter().all(|pod| pod.uid != incarnation.pod_uid));
    }

    pub(super) fn report(
        &mut self,
        incarnation: &Incarnation,
        index: u32,
        phase: Phase,
        generation: Generation,
    ) {
        self.tick(1);
        let report = Report {
            identity: id(index),
            node: format!("node-{}", index % 2),
            pod_name: incarnation.pod_uid.clone(),
            phase,
            generation,
            counted_restarts: 0,
            since: self.now,
            heartbeat: Heartbeat::Well,
            released_generation: None,
            standby: None,
            progress: None,
        };
        self.observed.reports.insert(incarnation.clone(), report);
    }

    /// The current incarnation of this index and its report.
    pub(super) fn current(&self, index: u32) -> (Incarnation, Report) {
        let pod = &self.observed.workers[&id(index)].pods[0].uid;
        self.observed
            .reports
            .iter()
            .filter(|(incarnation, report)| {
                incarnation.pod_uid == *pod
                    && report.identity == id(index)
                    && !matches!(report.phase, Phase::Lost(_))
            })
            .max_by_key(|(_, report)| report.since)
            .map(|(incarnation, report)| (incarnation.clone(), report.clone()))
            .unwrap()
    }

    pub(super) fn set_phase(&mut self, index: u32, phase: Phase) {
        let (incarnation, report) = self.current(index);
        self.report(&incarnation, index, phase, report.generation);
    }

    pub(super) fn fail(&mut self, index: u32) {
        self.set_phase(index, Phase::Exited(Exit { code: 137, signal: 9 }));
    }

    /// The running worker of this index reports this heartbeat.
    pub(super) fn beat(&mut self, index: u32, heartbeat: Heartbeat) {
        let (incarnation, report) = self.current(index);
        if report.heartbeat != heartbeat {
            self.tick(1);
            let report = Report {
                heartbeat,
                since: self.now,
                ..report
            };
            self.observed.reports.insert(incarnation, report);
        }
    }

    pub(super) fn phases(&self) -> Vec<Phase> {
        self.observed
            .reports
            .values()
            .map(|report| report.phase)
            .collect()
    }

    /// One step of the coordinator; the world confirms its status write if it is set to.
    pub(super) fn step(&mut self) -> Output {
        let out = self.coordinator.step(&self.observed, self.now);
        self.announcements.extend(out.announcements.clone());
        self.replace = out.replace;
        self.condemned.clone_from(&out.condemned);
        if let Some(desired) = &out.desired {
            self.desired = Some(desired.clone());
        }
        if self.confirm
            && let Some(status) = &out.status
        {
            self.confirm_write(status.clone());
        }
        out
    }

    pub(super) fn confirm_write(&mut self, status: Durable) {
        assert!(
            status.generation >= self.observed.durable.generation,
            "the generation fell"
        );
        let latest = |durable: &Durable| durable.generation.max(durable.latest);
        assert!(
            latest(&status) >= latest(&self.observed.durable),
            "the latest fell"
        );
        if status.phase == DurablePhase::Recreating && self.observed.durable.generation < status.generation {
            self.recreations += 1;
            let live = self
                .observed
                .workers
                .values()
                .map(|worker| worker.pods.len())
                .sum();
            self.observed.old_pods = live;
            for index in self.indexes() {
                self.lose_pod(index);
            }
        }
        self.writes += 1;
        self.observed.durable = status;
    }

    /// Every agent executes its orders once.
    pub(super) fn obey(&mut self) {
        let Some(desired) = self.desired.clone() else {
            return;
        };
        for (incarnation, report) in self.observed.reports.clone() {
            let target = desired
                .worker_restarts
                .get(&incarnation)
                .copied()
                .unwrap_or(WorkerRestart {
                    generation: desired.generation,
                    release: desired.release,
                });
            let ahead = target.generation > report.generation;
            let (phase, generation) = match report.phase {
                Phase::Fresh if target.release && desired.fresh.contains(&incarnation) => {
                    (Phase::Running, target.generation)
                }
                Phase::Fresh if ahead && target.release => continue,
                Phase::Fresh | Phase::Running | Phase::Exited(_) if ahead => {
                    (Phase::Parked, target.generation)
                }
                Phase::Parked if ahead => (Phase::Parked, target.generation),
                Phase::Parked
                    if target.release
                        && target.generation == report.generation
                        && (self.starts.contains_key(&incarnation)
                            || desired.fresh.contains(&incarnation)) =>
                {
                    (Phase::Running, target.generation)
                }
                _ => continue,
            };
            if phase == Phase::Running {
                let durable = &self.observed.durable;
                assert!(
                    target.generation <= durable.generation.max(durable.latest),
                    "released before it was durable"
                );
                *self.starts.entry(incarnation.clone()).or_default() += 1;
            }
            self.tick(1);
            let report = Report {
                phase,
                generation,
                since: self.now,
                heartbeat: Heartbeat::Well,
                ..report
            };
            self.observed.reports.insert(incarnation, report);
        }
    }

    /// Steps and obeys until nothing changes.
    pub(super) fn settle(&mut self) {
        for _ in 0..20 {
            let before = (self.observed.clone(), self.desired.clone());
            self.step();
            self.obey();
            if (self.observed.clone(), self.desired.clone()) == before {
                return;
            }
        }
        panic!("the group does not settle: {}", self.coordinator.phase());
    }

    /// The control plane deletes the pods that must go, and replaces missing ones if it may.
    pub(super) fn tend_pods(&mut self) {
        for condemned in std::mem::take(&mut self.condemned) {
            let worker = &self.observed.workers[&condemned.identity];
            if worker.pods.iter().any(|pod| pod.uid == condemned.pod_uid) {
                self.lose_pod(condemned.identity.index);
            }
        }
        for index in self.indexes() {
            if self.replace && self.observed.workers[&id(index)].pods.is_empty() {
                self.pod(index);
            }
        }
    }

    fn indexes(&self) -> BTreeSet<u32> {
        let workers = self.observed.workers.keys();
        workers.map(|identity| identity.index).collect()
    }

    pub(super) fn restarts(&self) -> usize {
        self.announcements
            .iter()
            .filter(|said| matches!(said, Announcement::Restarting { .. }))
            .count()
    }

    /// The control plane dies, and a new leader takes over the durable state.
    pub(super) fn new_leader(&mut self, epoch: u64) {
        self.coordinator = Coordinator::recover(Epoch(epoch), &self.observed.durable, 15_000, self.now);
        self.desired = None;
    }
}
