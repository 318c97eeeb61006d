//! Deletes the pods of workers that fail repeatedly, so that the scheduler may place them
//! elsewhere.
//!
//! It also deletes the pod of a single worker that does not restart in time, or fails soon after a
//! restart in place ([`super::climb`]).
//!
//! Failures count from the restarts that this leader has begun; the next leader starts from zero. A
//! deletion is not counted again: it belongs to the restart that it happens in.

use std::collections::{BTreeMap, VecDeque};

use super::super::view::{Slot, Slots};
use super::super::{Cause, Condemned, EscalateAfter, Identity, Reason, UnixNanos};

/// Failures by worker, and the pods to delete.
#[derive(Debug, Clone, Default)]
pub(super) struct Escalation {
    failures: BTreeMap<Identity, VecDeque<UnixNanos>>,
    /// By UID of the pod, which takes all of its workers with it.
    condemned: BTreeMap<String, Condemned>,
}

impl Escalation {
    /// Notes a failure that begins a restart. Returns the pod to delete if it is one too many.
    pub(super) fn failed(
        &mut self,
        cause: &Cause,
        after: EscalateAfter,
        slot: &Slot<'_>,
        now: UnixNanos,
    ) -> Option<Condemned> {
        let identity = cause.identity.as_ref().filter(|_| !slot.worker.keeps_pod)?;
        if cause.reason == Reason::PodLost {
            // The worker has moved already.
            self.failures.remove(identity);
            return None;
        }
        let times = self.failures.entry(identity.clone()).or_default();
        times.push_back(now);
        times.retain(|at| at.plus_millis(after.within_ms) >= now);
        if times.len() < usize::try_from(after.failures).unwrap_or(usize::MAX) {
            return None;
        }
        self.condemn(identity, slot)
    }

    /// Condemns the pod of this worker, if it has one and may lose it.
    pub(super) fn condemn(&mut self, identity: &Identity, slot: &Slot<'_>) -> Option<Condemned> {
        let pod = slot.pod.filter(|_| !slot.worker.keeps_pod)?;
        self.failures.remove(identity);
        let condemned = Condemned {
            identity: identity.clone(),
            pod_uid: pod.uid.clone(),
            pod: pod.name.clone(),
            node: pod.node.clone().unwrap_or_default(),
        };
        self.condemned.insert(pod.uid.clone(), condemned.clone());
        Some(condemned)
    }

    /// Forgets pods that are gone or whose worker is done, and failures of workers that are no
    /// longer expected.
    pub(super) fn tidy(&mut self, slots: &Slots<'_>) {
        self.failures.retain(|identity, _| slots.contains_key(identity));
        self.condemned.retain(|pod_uid, condemned| {
            slots.get(&condemned.identity).is_some_and(|slot| {
                slot.takes_part() && slot.worker.pods.iter().any(|pod| pod.uid == *pod_uid)
            })
        });
    }

    /// True if a pod of this worker is condemned. The worker is not released there.
    pub(super) fn condemns(&self, slot: &Slot<'_>) -> bool {
        let pods = &slot.worker.pods;
        !self.condemned.is_empty() && pods.iter().any(|pod| self.condemned.contains_key(&pod.uid))
    }

    /// The pods to delete.
    pub(super) fn condemned(&self) -> impl Iterator<Item = &Condemned> {
        self.condemned.values()
    }
}
