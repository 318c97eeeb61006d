//! One pod whose workers have no agent: their containers, and what is reported of them.

use std::collections::BTreeMap;

use super::super::facts::Effects;
use super::super::record::Records;
use crate::worker::types::{
    AgentPhase, BootNanos, ContainerId, Desired, Ended, Epoch, Generation, Heartbeat, Incarnation, Phase,
    Pod, PodUid, Progress, UnixNanos, WorkerState,
};

#[derive(Debug)]
pub(super) struct Container {
    pub(super) id: ContainerId,
    pub(super) created: UnixNanos,
    /// The same by the boot clock, computed when the container was first listed: the wall clock may
    /// be set later.
    pub(super) began: BootNanos,
    pub(super) ended: Option<Ended>,
    /// The generation that it belongs to.
    pub(super) generation: Option<Generation>,
    pub(super) stopping: bool,
    pub(super) reported: Option<WorkerState>,
}

impl Container {
    /// The incarnation of a container that is no longer known, if it was reported.
    pub(super) fn gone_from(self, pod: &PodUid) -> Option<Incarnation> {
        self.reported.map(|_| Incarnation {
            pod: pod.clone(),
            container: self.id,
        })
    }
}

#[derive(Debug, Default)]
pub(super) struct Worker {
    pub(super) containers: BTreeMap<u32, Container>,
}

#[derive(Debug)]
pub(super) struct PodEntry {
    pub(super) pod: Pod,
    pub(super) records: Records,
    pub(super) workers: BTreeMap<String, Worker>,
}

impl PodEntry {
    pub(super) fn forget_reports(&mut self) {
        for worker in self.workers.values_mut() {
            for container in worker.containers.values_mut() {
                container.reported = None;
            }
        }
    }

    /// Assigns generations to containers. Only what is on disk counts.
    pub(super) fn assign(&mut self) {
        for (name, worker) in &mut self.workers {
            let Some(record) = self.records.get(name) else {
                continue;
            };
            if let Some(container) = worker.containers.get_mut(&record.attempt)
                && container.id == record.container
            {
                container.generation = Some(record.generation);
            }
        }
    }

    /// Marks the containers that are to end as being stopped, and returns the newly marked ones.
    pub(super) fn stops(&mut self) -> Vec<ContainerId> {
        let mut stops = Vec::new();
        for (name, worker) in &mut self.workers {
            let Some(record) = self.records.get(name).filter(|record| record.next.is_some()) else {
                continue;
            };
            let Some(container) = worker.containers.get_mut(&record.attempt) else {
                continue;
            };
            if container.id == record.container && container.ended.is_none() && !container.stopping {
                container.stopping = true;
                stops.push(container.id.clone());
            }
        }
        stops
    }

    pub(super) fn report(
        &mut self,
        desired: Option<&Desired>,
        highest: Epoch,
        revision: &mut u64,
        effects: &mut Effects,
    ) {
        let epoch = desired.map_or(highest, |desired| desired.epoch.max(highest));
        for (name, worker) in &mut self.workers {
            let record = self.records.get(name);
            for (attempt, container) in &mut worker.containers {
                if container.generation.is_none() && record.is_some_and(|record| *attempt < record.attempt) {
                    // It ended and was replaced before this daemon knew of it.
                    continue;
                }
                let (phase, since) = match (container.ended, container.generation) {
                    (Some(Ended { exit, at }), _) => (Phase::Lost(exit), at),
                    (None, Some(_)) => (Phase::Agent(AgentPhase::Running), container.created),
                    (None, None) => (Phase::Agent(AgentPhase::Fresh), container.created),
                };
                let mut state = WorkerState {
                    group: self.pod.group.clone(),
                    job: self.pod.job.clone(),
                    index: self.pod.index,
                    container: name.clone(),
                    incarnation: Incarnation {
                        pod: self.pod.uid.clone(),
                        container: container.id.clone(),
                    },
                    namespace: self.pod.namespace.clone(),
                    pod_name: self.pod.name.clone(),
                    phase,
                    generation: container.generation.unwrap_or_default(),
                    epoch: record.map_or(epoch, |record| record.epoch.max(epoch)),
                    counted_restarts: record.map_or(0, |record| record.counted_restarts),
                    revision: container
                        .reported
                        .as_ref()
                        .map_or(0, |reported| reported.revision),
                    since,
                    detail: String::new(),
                    heartbeat: Heartbeat::Well,
                    released_generation: None,
                    starts: None,
                    standbys: None,
                    progress: Progress::default(),
                };
                if container.reported.as_ref() != Some(&state) {
                    *revision += 1;
                    state.revision = *revision;
                    container.reported = Some(state.clone());
                    effects.reports.push(state);
                }
            }
        }
    }
}
