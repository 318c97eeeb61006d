//! Pods that were lost in a restart: who replaces them, and when it is not worth the wait.

use super::super::view::View;
use super::super::{Identity, Incarnation, Observed, Reason, UnixNanos};
use super::{Coordinator, State};

impl Coordinator {
    /// Whether lost pods may be replaced. Not where workers do not run in the end, and not while the failure policy of a Job decides what becomes of it.
    pub(super) fn may_replace(&self, now: UnixNanos) -> bool {
        let runs = !matches!(self.state, State::Recreating | State::Suspended | State::Failed);
        runs && self.held.values().all(|until| *until <= now)
    }

    /// Whether the Job controller, where lost pods are left to it, would let the time-out pass before it replaces one that is waited for.
    pub(super) fn replacement_is_late(&self, observed: &Observed, view: &View<'_>) -> bool {
        !observed.policy.replaces_pods
            && self.barrier(view).any(|(_, slot)| {
                slot.worker.pods.is_empty() && slot.worker.back_off_ms > observed.policy.timeout_ms
            })
    }

    /// Whether a worker that is about to be released runs in another pod than before. A new leader knows that only of the pod that the restart is about.
    pub(super) fn is_in_another_pod(&self, identity: &Identity, incarnation: &Incarnation) -> bool {
        match self.seats.get(identity) {
            Some(seat) => seat.pod_uid != incarnation.pod_uid,
            None => self.cause.as_ref().is_some_and(|cause| {
                cause.reason == Reason::PodLost && cause.identity.as_ref() == Some(identity)
            }),
        }
    }
}
