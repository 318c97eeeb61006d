//! Workers that fail again and again where they are: their pod is deleted, so that the scheduler may put the next one elsewhere.
//!
//! The same happens to a pod in which a worker that is restarted alone does not come up in time, or fails soon after a restart in place ([`super::climb`]).
//!
//! Failures are counted from the restarts that this leader has begun; the next leader begins anew. Nothing is counted twice for it: the deletion
//! belongs to the restart that it happens in.

use std::collections::{BTreeMap, VecDeque};

use super::super::view::{Slot, Slots};
use super::super::{Cause, Condemned, EscalateAfter, Identity, Reason, UnixNanos};

/// Failures by worker, and the pods that are to go.
#[derive(Debug, Clone, Default)]
pub(super) struct Escalation {
    failures: BTreeMap<Identity, VecDeque<UnixNanos>>,
    /// By UID of the pod: all of its workers go with it.
    condemned: BTreeMap<String, Condemned>,
}

impl Escalation {
    /// A failure that begins a restart. Returns the pod that is to go, where this was one too many.
    pub(super) fn failed(
        &mut self,
        cause: &Cause,
        after: EscalateAfter,
        slot: &Slot<'_>,
        now: UnixNanos,
    ) -> Option<Condemned> {
        let identity = cause.identity.as_ref().filter(|_| !slot.worker.keeps_pod)?;
        if cause.reason == Reason::PodLost {
            // It has moved already.
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

    /// Has the pod of this worker deleted, where it has one, and may lose it.
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

    /// Pods that are gone, or whose worker is done, need not be deleted any more, and workers that are not expected any more are not counted.
    pub(super) fn tidy(&mut self, slots: &Slots<'_>) {
        self.failures.retain(|identity, _| slots.contains_key(identity));
        self.condemned.retain(|pod_uid, condemned| {
            slots
                .get(&condemned.identity)
                .is_some_and(|slot| slot.counts() && slot.worker.pods.iter().any(|pod| pod.uid == *pod_uid))
        });
    }

    /// Whether a pod of this worker is to go: it is not released there.
    pub(super) fn condemns(&self, slot: &Slot<'_>) -> bool {
        let pods = &slot.worker.pods;
        !self.condemned.is_empty() && pods.iter().any(|pod| self.condemned.contains_key(&pod.uid))
    }

    /// The pods that are to be deleted.
    pub(super) fn condemned(&self) -> impl Iterator<Item = &Condemned> {
        self.condemned.values()
    }
}
