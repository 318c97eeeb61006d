//! The consequence of a failure: a counted restart, one that recreates more, or the end.

use lockstep_mutants::mutant;

use super::super::view::View;
use super::super::{Announcement, Cause, Identity, Observed, Reason, RestartLevel};
use super::Coordinator;
use super::climb::{LatestRestart, Recreated};
use super::step::Step;

/// The consequence of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Consequence {
    /// A counted restart.
    Counted,
    /// A restart that recreates the worker's pod. It is not counted.
    Pod,
    /// All Jobs are recreated, for this reason. It is not counted.
    Jobs(Reason),
    /// The group fails: no restart is left.
    Fail,
}

impl Coordinator {
    fn restarts_are_left(&self, observed: &Observed) -> bool {
        self.counted_restarts < observed.policy.max_restarts || mutant!(IgnoreMaxRestarts)
    }

    /// The consequence of a failure that restarts the group.
    pub(super) fn consequence(&self, cause: &Cause, step: &Step<'_>) -> Consequence {
        let Step {
            observed, view, now, ..
        } = *step;
        // Without agents the kubelet's own back-off soon exceeds `inplace-timeout`.
        let has_agents = view.level() == RestartLevel::Process;
        let latest = &self.latest_restart;
        if has_agents && !mutant!(NeverClimb) {
            match latest.recreates_next(cause, now) {
                Some(Recreated::Pod) if may_lose_pod(cause, view) => return Consequence::Pod,
                Some(Recreated::Jobs) => return Consequence::Jobs(Reason::FailedInNewPod),
                _ => {}
            }
        }
        if self.restarts_are_left(observed) {
            return Consequence::Counted;
        }
        if latest.leftovers_may_cause(Recreated::Jobs, cause, now) && !mutant!(FailInPlace) {
            return Consequence::Jobs(Reason::LastResort);
        }
        Consequence::Fail
    }

    /// The consequence of a failure that restarts only its worker. Other workers are not touched,
    /// unless its pod must stay. Then recreating all Jobs is the last resort.
    pub(super) fn worker_consequence(&self, cause: &Cause, step: &Step<'_>) -> Consequence {
        let Step {
            observed, view, now, ..
        } = *step;
        let own = cause
            .identity
            .as_ref()
            .and_then(|identity| self.worker_restarts.latest_restart(identity));
        let next = own.and_then(|own| own.recreates_next(cause, now));
        if next == Some(Recreated::Pod) && may_lose_pod(cause, view) && !mutant!(NeverClimb) {
            return Consequence::Pod;
        }
        if self.restarts_are_left(observed) {
            return Consequence::Counted;
        }
        let outlives = own
            .unwrap_or(&self.latest_restart)
            .leftovers_may_cause(Recreated::Pod, cause, now);
        match outlives && !mutant!(FailInPlace) {
            true if may_lose_pod(cause, view) => Consequence::Pod,
            true => Consequence::Jobs(Reason::LastResort),
            false => Consequence::Fail,
        }
    }

    /// Notes that the restart for this failure has begun: the next failure is judged by it.
    pub(super) fn note_begun(&mut self, cause: &Cause, recreated: Recreated) {
        self.latest_restart = LatestRestart::of_failure(cause, recreated);
        if recreated == Recreated::Pod {
            self.level = self.level.max(Some(RestartLevel::Pod));
        }
    }

    /// Notes that the restart of this worker has begun.
    pub(super) fn note_worker_restart_begun(
        &mut self,
        identity: &Identity,
        cause: &Cause,
        recreated: Recreated,
    ) {
        self.worker_restarts
            .set_latest_restart(identity, LatestRestart::of_failure(cause, recreated));
    }

    /// Condemns the pod of the worker that has failed.
    pub(super) fn condemn_pod(&mut self, cause: &Cause, step: &mut Step<'_>) {
        let slot = cause.identity.as_ref().zip(step.slot_of(cause));
        let condemned = slot.and_then(|(identity, slot)| self.escalation.condemn(identity, slot));
        step.out
            .announcements
            .extend(condemned.map(|condemned| Announcement::Climbed { condemned }));
    }
}

fn may_lose_pod(cause: &Cause, view: &View<'_>) -> bool {
    let slot = cause
        .identity
        .as_ref()
        .and_then(|identity| view.slots.get(identity));
    slot.is_some_and(|slot| slot.pod.is_some() && !slot.worker.keeps_pod)
}
