//! Takes in the control plane's orders, and derives the targets of agents.

use super::super::facts::Effects;
use super::super::plan;
use super::super::types::{ContainerId, Desired, Incarnation, StaleOrder};
use super::Table;

/// Most groups that are remembered while none of their pods is known here.
const MAX_GROUPS: usize = 10_000;

impl Table {
    pub(super) fn on_desired(&mut self, desired: Desired, effects: &mut Effects) {
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
        let highest = self.epoch_of(&group);
        if highest > desired.epoch {
            // The sender must learn of the higher epoch: report it, with a new revision.
            effects.stale.push(StaleOrder {
                group,
                epoch: desired.epoch,
                highest,
            });
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
    pub(super) fn retarget(&mut self, id: &ContainerId, effects: &mut Effects) {
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
        if worker.sent.as_ref() != Some(&target) {
            effects.targets.push((id.clone(), link.id, target.clone()));
            let mut believed = false;
            if let (Some(limits), Some(last)) = (&mut worker.limits, &worker.last) {
                let before = limits.generation;
                limits.raise(&target);
                believed = before < last.generation && before < limits.generation;
            }
            worker.sent = Some(target);
            if believed {
                self.refresh(id, effects);
            }
        }
    }
}
