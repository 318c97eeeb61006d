//! Read access to the table.

use std::collections::BTreeSet;

use lockstep_mutants::mutant;

use super::super::types::{ContainerId, Epoch, GroupUid, Pod, PodUid, WorkerState};
use super::Table;

impl Table {
    /// The pods that are known.
    #[must_use]
    pub fn pods(&self) -> BTreeSet<PodUid> {
        self.pods.keys().cloned().collect()
    }

    /// Namespace of a pod of this node.
    #[must_use]
    pub fn namespace_of(&self, pod: &PodUid) -> Option<&str> {
        self.pods.get(pod).map(|entry| entry.pod.namespace.as_str())
    }

    /// The pod of a container.
    #[must_use]
    pub fn pod_of(&self, id: &ContainerId) -> Option<&Pod> {
        let worker = self.workers.get(id)?;
        self.pods.get(&worker.pod).map(|entry| &entry.pod)
    }

    pub(super) fn workers_of(&self, pod: &PodUid) -> Vec<ContainerId> {
        self.workers
            .iter()
            .filter(|(_, worker)| worker.pod == *pod)
            .map(|(id, _)| id.clone())
            .collect()
    }

    /// Every state that has been reported, as it is now.
    #[must_use]
    pub fn snapshot(&self) -> Vec<WorkerState> {
        mutant!(EmptySnapshot => Vec::new());
        let epoch = |group: &GroupUid| self.epoch_of(group);
        self.workers
            .values()
            .filter_map(|worker| worker.reported.clone())
            .map(|state| WorkerState {
                epoch: state.epoch.max(epoch(&state.group)),
                ..state
            })
            .collect()
    }

    /// The highest epoch of a leader that this daemon knows of, for this group.
    pub(super) fn epoch_of(&self, group: &GroupUid) -> Epoch {
        let desired = self
            .groups
            .get(group)
            .map_or(Epoch::default(), |desired| desired.epoch);
        desired.max(self.welcomed_epoch)
    }

    /// True if the container is known as another pod's.
    #[must_use]
    pub fn is_of_another(&self, id: &ContainerId, pod: &PodUid) -> bool {
        self.workers.get(id).is_some_and(|worker| worker.pod != *pod)
    }
}
