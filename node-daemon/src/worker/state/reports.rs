//! The report about a worker, made of what its agent said last and what the daemon knows better. A
//! generation that no leader has ordered is not passed on.

use lockstep_mutants::mutant;

use super::super::facts::Effects;
use super::super::types::{
    AgentPhase, AgentState, ContainerId, Epoch, Generation, Heartbeat, Incarnation, Phase, WorkerState,
};
use super::Table;
use super::worker::PhaseReport;

impl Table {
    /// Reports this worker, if anything about it has changed since the last time.
    pub(super) fn refresh(&mut self, id: &ContainerId, effects: &mut Effects) {
        let Some(worker) = self.workers.get_mut(id) else {
            return;
        };
        let (Some(entry), Some(reported)) = (self.pods.get(&worker.pod), worker.phase()) else {
            return;
        };
        let PhaseReport { phase, since, detail } = reported;
        let last = worker.last.as_ref();
        let limits = worker.limits;
        let generation = |last: &AgentState| {
            let highest = limits.map_or(last.generation, |limits| limits.generation);
            last.generation.min(highest)
        };
        let counted_restarts = |last: &AgentState| {
            let highest = limits.map_or(last.counted_restarts, |limits| limits.counted_restarts);
            last.counted_restarts.min(highest)
        };
        let epoch = self
            .groups
            .get(&entry.pod.group)
            .filter(|desired| desired.is_of(&entry.pod))
            .map_or(Epoch::default(), |desired| desired.epoch)
            .max(self.welcomed_epoch);
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
            generation: last.map_or(Generation::default(), generation),
            epoch,
            counted_restarts: last.map_or(0, counted_restarts),
            revision: worker.reported.as_ref().map_or(0, |reported| reported.revision),
            since,
            detail,
            heartbeat: match phase {
                Phase::Agent(_) => last.map_or(Heartbeat::Well, |last| last.heartbeat),
                Phase::Unlinked(_) | Phase::Lost(_) => Heartbeat::Well,
            },
            released_generation: worker.released_generation(),
            starts: last.and_then(|last| last.starts),
            standbys: match phase {
                Phase::Agent(AgentPhase::Done(_)) | Phase::Lost(_) => None,
                Phase::Agent(_) | Phase::Unlinked(_) => last.and_then(|last| last.standbys.clone()),
            },
            progress: last.map_or_else(Default::default, |last| last.progress.clone()),
        };
        let reported = worker.reported.as_ref();
        if reported != Some(&state) {
            let waits = reported.is_some_and(|reported| state.is_mere_progress(reported));
            self.revision += 1;
            state.revision = self.revision;
            worker.reported = Some(state.clone());
            if waits {
                &mut effects.progress
            } else {
                &mut effects.reports
            }
            .push(state);
        }
    }
}
