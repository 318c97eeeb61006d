//! Pods above the minimum of a gang. They may come late or never: a restart waits only for those
//! that have joined, and joining needs no restart.
//!
//! An optional worker joins when it is released. The status records that it runs, so that a later
//! leader can tell a lost worker from one that never came. Losing it is a failure like any other,
//! but the restart does not wait for it: it may not find room again.

use std::collections::BTreeMap;

use lockstep_mutants::mutant;

use super::super::view::View;
use super::super::{Identity, Observed, Phase, RestartLevel};
use super::{Coordinator, State};

impl Coordinator {
    /// True if an optional worker has joined.
    pub(super) fn has_joined(&self, identity: &Identity) -> bool {
        self.released_in.contains_key(identity)
            || self.joined.contains(&identity.place())
            || self.worker_restarts.contains(identity)
            || mutant!(OptionalAreExpected)
    }

    /// Forgets optional workers that are no longer wanted. If they are wanted again, they join like
    /// new ones. The workers of a Job that is missing for a while are lost with it.
    pub(super) fn forget_unwanted_optional(&mut self, observed: &Observed) {
        // Workers of a Job that is no longer wanted may have been released without having joined.
        let none = self.joined.is_empty()
            && observed.unwanted_jobs.is_empty()
            && !observed.workers.values().any(|worker| worker.optional);
        if none {
            return;
        }
        let from = |job: &str, index| {
            let first = Identity {
                job: job.into(),
                index,
                container: "".into(),
            };
            observed
                .workers
                .range(first..)
                .next()
                .map(|(identity, _)| identity)
        };
        let is_there = |job: &str| from(job, 0).is_some_and(|identity| *identity.job == *job);
        let mut jobs: BTreeMap<String, bool> = BTreeMap::new();
        let mut sized = |job: &str| {
            let is_sized = || observed.unwanted_jobs.contains(job) || is_there(job);
            *jobs.entry(job.to_owned()).or_insert_with(is_sized)
        };
        let unwanted: Vec<Identity> = self
            .released_in
            .keys()
            .filter(|identity| !observed.workers.contains_key(*identity) && sized(&identity.job))
            .cloned()
            .collect();
        for identity in unwanted.iter().filter(|_| !mutant!(RememberUnwanted)) {
            self.released_in.remove(identity);
            self.newcomers.remove(identity);
            self.unseen.remove(identity);
        }
        self.joined.retain(|place| {
            let parts = place.split_once('/');
            let Some((job, index)) = parts.and_then(|(job, index)| Some((job, index.parse().ok()?))) else {
                return true;
            };
            let is_wanted = from(job, index).is_some_and(|found| *found.job == *job && found.index == index);
            is_wanted || !sized(job)
        });
    }

    /// Lets optional workers that are seen to run join, before anything is decided. The status may
    /// not name them, since a former leader could not write that. A restart has to stop them too.
    pub(super) fn join_those_that_run(&mut self, observed: &Observed, view: &mut View<'_>) {
        let stops = match self.state {
            State::InSync if self.may_release(observed) => false,
            State::Stopping { .. } | State::Parked { .. } => true,
            _ => return,
        };
        for (identity, slot) in view.slots.iter_mut().filter(|(_, slot)| slot.may_join()) {
            let Some((_, report)) = slot.current else {
                continue;
            };
            let joins = if stops {
                slot.worker.level == RestartLevel::Process
                    && match report.phase {
                        Phase::Stopping => true,
                        Phase::Starting | Phase::Running | Phase::Exited(_) => {
                            report.generation < self.generation
                        }
                        _ => false,
                    }
            } else {
                matches!(report.phase, Phase::Starting | Phase::Running)
                    && report.generation == self.wanted(identity)
            };
            if joins {
                self.joined.insert(identity.place());
                slot.absent = false;
            }
        }
    }

    /// During a restart, forgets optional workers without a pod on a node.
    pub(super) fn forget_lost_optional(&mut self, observed: &Observed) {
        if !matches!(self.state, State::Stopping { .. } | State::Parked { .. }) {
            return;
        }
        let optional = observed.workers.iter().filter(|(_, worker)| worker.optional);
        for (identity, _) in optional.filter(|(_, worker)| worker.pods.iter().all(|pod| pod.node.is_none())) {
            self.joined.remove(&identity.place());
            self.released_in.remove(identity);
            self.newcomers.remove(identity);
            self.unseen.remove(identity);
        }
    }
}
