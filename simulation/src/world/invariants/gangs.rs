//! Invariants of gangs: a pod is admitted to the scheduler only after that is durable, and optional
//! workers only after the minimum is bound.

use lockstep_api::{GangPhase, GangStatus, JobSet};
use lockstep_core::gang::gang_name;

use crate::world::World;
use crate::world::kubernetes::gangs::{is_optional, stage_and_index};

/// The gangs of one restart attempt of one JobSet.
pub(super) type Gang = (String, i32, String);

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
        let gang = (pod.jobset_uid.clone(), pod.recreation, gang);
        if !self.truth.admitted_gangs.contains(&gang) {
            self.violate(format!("{worker:?} loses its gate before that is durable"));
        } else if is_optional(jobset, &worker) && !self.truth.bound_gangs.contains(&gang) {
            self.violate(format!("{worker:?} loses its gate before the minimum is bound"));
        }
    }
}
