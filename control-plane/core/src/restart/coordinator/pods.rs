//! Pods that are lost in a restart: when they may be replaced, and when waiting is pointless.

use super::super::blocked::{Blockage, Watchdog};
use super::super::view::View;
use super::super::{Announcement, Cause, Identity, Incarnation, Observed, Reason, UnixNanos};
use super::climb::Recreated;
use super::step::Step;
use super::{Coordinator, State};

impl Coordinator {
    /// True if lost pods may be replaced. They may not if the workers must not run, or while the
    /// failure policy of a Job decides.
    pub(super) fn may_replace(&self, view: &View<'_>, now: UnixNanos) -> bool {
        let runs = !matches!(self.state, State::Recreating | State::Suspended | State::Failed);
        runs && !view.is_failing() && self.held.values().all(|until| *until <= now)
    }

    /// True if the Job controller replaces lost pods, and would replace a needed one only after the
    /// time-out.
    pub(super) fn replacement_is_late(&self, observed: &Observed, view: &View<'_>) -> bool {
        !observed.policy.replaces_pods
            && self.barrier(view).any(|(_, slot)| {
                slot.worker.pods.is_empty() && slot.worker.back_off_ms > observed.policy.timeout_ms
            })
    }

    /// Condemns the pod of a worker that has failed too often.
    pub(super) fn escalate(&mut self, cause: &Cause, step: &mut Step<'_>) -> Recreated {
        let Some(after) = step.observed.policy.escalate_after else {
            return Recreated::InPlace;
        };
        let slot = step.slot_of(cause);
        let condemned = slot.and_then(|slot| self.escalation.failed(cause, after, slot, step.now));
        let Some(condemned) = condemned else {
            return Recreated::InPlace;
        };
        let after = Some(after);
        step.announce(Announcement::Escalated { condemned, after });
        Recreated::Pod
    }

    /// Reports what blocks the group. Returns when to check again.
    pub(super) fn find_blockage(&mut self, step: &mut Step<'_>) -> Option<UnixNanos> {
        match self.state {
            State::Recovering { .. } => return None,
            State::Suspended | State::Failed => {
                self.watchdog = Watchdog::default();
                step.out.blocked = Blockage::Clear;
                return None;
            }
            _ => {}
        }
        let before = self.watchdog.last.clone();
        let (blocked, check_at) = self
            .watchdog
            .check(step.observed, step.view, &self.unseen, step.now);
        step.out.blocked = match blocked {
            None => Blockage::Clear,
            Some(blocked) => {
                if before.is_none() {
                    step.announce(Announcement::Blocked(blocked.clone()));
                }
                Blockage::By(blocked)
            }
        };
        check_at
    }

    /// True if a worker that is about to be released runs in another pod than before. A new leader
    /// knows that only of the pod in the restart's cause.
    pub(super) fn is_in_another_pod(&self, identity: &Identity, incarnation: &Incarnation) -> bool {
        match self.released_in.get(identity) {
            Some(released) => released.pod_uid != incarnation.pod_uid,
            None => self.cause.as_ref().is_some_and(|cause| {
                cause.reason == Reason::PodLost && cause.identity.as_ref() == Some(identity)
            }),
        }
    }
}
