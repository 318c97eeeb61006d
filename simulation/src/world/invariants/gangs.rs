//! Invariants of gangs: a pod is admitted to the scheduler only after that is durable, and optional
//! workers only after the minimum is bound.

use lockstep_api::{GangPhase, GangStatus, JobSet};
use lockstep_core::gang::gang_name;

use crate::world::World;
use crate::world::kubernetes::gangs::{is_optional, stage_and_index};
use crate::world::node::container::Identity;

/// A gang: the UID of its JobSet, the restart attempt, and its name.
pub(super) type Gang = (String, i32, String);

/// True if the minimum of this worker's gang has been bound since the Jobs were last recreated.
fn is_bound(jobset: &JobSet, worker: &Identity) -> bool {
    if jobset.spec.gang.is_none() {
        return true;
    }
    let name = gang_name(jobset, stage_and_index(&worker.0).0);
    let mut gangs = jobset.status.iter().flat_map(|status| &status.gangs);
    gangs.any(|gang| {
        gang.name == name
            && gang.restart_attempt == jobset.restart_attempt()
            && gang.phase == GangPhase::Scheduled
    })
}

impl World {
    /// Notes states of gangs that are durable.
    pub(crate) fn note_gangs(&mut self, jobset: &JobSet, gangs: &[GangStatus]) {
        for gang in gangs {
            let gang_of = || {
                let uid = jobset.uid_str().to_owned();
                (uid, gang.restart_attempt, gang.name.clone())
            };
            if matches!(gang.phase, GangPhase::Scheduling | GangPhase::Scheduled) {
                self.truth.admitted_gangs.insert(gang_of());
            }
            if gang.phase == GangPhase::Scheduled {
                self.truth.bound_gangs.insert(gang_of());
            }
        }
    }

    /// The leader removes the gate of a pod.
    pub(crate) fn check_ungated(&mut self, uid: &str) {
        let Some((pod, jobset)) = self.api.pods.get(uid).zip(self.api.jobset.as_ref()) else {
            return;
        };
        if !pod.gated || pod.jobset_uid != jobset.uid_str() {
            return;
        }
        let worker = (pod.job.clone(), pod.index);
        let gang = gang_name(jobset, stage_and_index(&pod.job).0).to_owned();
        let gang = (pod.jobset_uid.clone(), pod.restart_attempt, gang);
        if !self.truth.admitted_gangs.contains(&gang) {
            self.violate(format!("{worker:?} loses its gate before that is durable"));
        } else if is_optional(jobset, &worker) && !self.truth.bound_gangs.contains(&gang) {
            self.violate(format!("{worker:?} loses its gate before the minimum is bound"));
        }
    }

    /// True if this worker's gang may not work yet: the loss of one of its pods is no failure.
    pub(crate) fn waits_for_gang(&self, worker: &Identity) -> bool {
        let jobset = self.api.jobset.as_ref();
        jobset.is_some_and(|jobset| !is_bound(jobset, worker))
    }

    /// True if this worker may never start, since it is above the minimum.
    pub(crate) fn may_stay_away(&self, worker: &Identity) -> bool {
        let jobset = self.api.jobset.as_ref();
        jobset.is_some_and(|jobset| is_optional(jobset, worker))
    }

    /// True if this worker has no pod on any node and there is no room for one: it is above the
    /// minimum, or other workers above the minimum have taken the room. A PodGroup needs room for
    /// all pods that kube-scheduler binds at once.
    pub(crate) fn lacks_room(&self, worker: &Identity) -> bool {
        let short = self.scenario.gang.as_ref().is_some_and(|room| room.short);
        let pods = self.api.pods.values();
        let mut own = pods.filter(|pod| !pod.is_terminal() && pod.job == worker.0 && pod.index == worker.1);
        let groups = own.clone().filter_map(|pod| pod.group.as_deref());
        let needed = groups.map(|group| self.bound_at_once(group)).max();
        let nodes = (0..self.nodes.len()).filter(|node| !self.nodes[*node].gone);
        let room: u64 = nodes.map(|node| self.room_on(node)).sum();
        let needed = needed.unwrap_or(0).max(1) as u64;
        let bound = self.api.pods.values();
        let bound = bound.filter(|pod| !pod.is_terminal() && pod.node.is_some());
        let optional = bound.filter(|pod| self.may_stay_away(&(pod.job.clone(), pod.index)));
        let is_full = room < needed && room + optional.count() as u64 >= needed;
        short && (self.may_stay_away(worker) || is_full) && own.all(|pod| pod.node.is_none())
    }
}
