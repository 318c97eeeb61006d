//! The memory limit for what pods of gangs need of nodes, and for what bound pods take of them.

use std::sync::{Arc, Weak};

use lockstep_core::gang::{Footprint, Needs, Pod};
use lockstep_core::jobset::limits::MOST_WORKERS;

use crate::k8s::memory_limit;
use crate::k8s::watch::namespace_budget::Budget;

/// Shared needs are swept after this many removed pods.
const MOST_SHARED: usize = 1_024;

/// The bytes of a gang pod besides its name and its needs. It may be bound later, so the name of a
/// node is included.
const MEMBER: usize = 1000;
/// The bytes of needs that no other pod shares, besides long lists.
const OWN_NEEDS: usize = 1000;

/// The bytes of a bound pod besides the text of its footprint: its entries in the maps.
const BOUND: usize = 700;
/// The bytes of a bound pod with requests for five resources, without unusually long names.
const USUAL_BOUND: usize = 1700;

/// The room for gang pods and for bound pods, in bytes.
#[derive(Debug)]
pub(super) struct NeedsRoom {
    /// The room for long lists in their needs.
    pub(super) room: Budget,
    /// The room for all else.
    pub(super) members: Budget,
    /// The room for what bound pods take of nodes.
    pub(super) footprints: Budget,
    /// The needs of removed pods that other pods still share, with their namespace and size.
    shared: Vec<(Weak<Needs>, String, usize)>,
}

impl Default for NeedsRoom {
    fn default() -> Self {
        let memory = memory_limit::limit();
        Self {
            room: Budget::new(memory / 64, memory / 16),
            // The pods of one JobSet with the maximum number of workers fit into any process.
            members: Budget::new((memory / 16).max(MOST_WORKERS * 1100), usize::MAX),
            footprints: Budget::new((memory / 16).max(MOST_WORKERS * USUAL_BOUND), usize::MAX),
            shared: Vec::new(),
        }
    }
}

impl NeedsRoom {
    /// Takes room for a pod besides its long lists, and returns how much; `None` if there is none.
    pub(super) fn admit(&self, pod: &Pod, shares_needs: bool) -> Option<usize> {
        let bytes = bytes_of(pod, shares_needs);
        if self.members.takes(&pod.namespace, None, bytes) {
            return Some(bytes);
        }
        tracing::warn!(
            namespace = pod.namespace,
            name = pod.name,
            share = self.members.share,
            "the pods of gangs exceed this namespace's share of memory: this pod is ignored"
        );
        None
    }

    /// Gives back what [`NeedsRoom::admit`] took for a pod.
    pub(super) fn dismiss(&self, pod: &Pod, bytes: usize) {
        self.members.release(&pod.namespace, bytes);
    }

    /// True if there is room for a pod besides its long lists.
    pub(super) fn admits(&self, pod: &Pod) -> bool {
        self.members.has(&pod.namespace, bytes_of(pod, false))
    }

    /// Takes room for a bound pod, and returns how much; `None` if there is none.
    pub(super) fn bind(&self, namespace: &str, footprint: &Footprint) -> Option<usize> {
        let bytes = BOUND + footprint.bytes();
        if self.footprints.takes(namespace, None, bytes) {
            return Some(bytes);
        }
        tracing::warn!(
            namespace,
            node = footprint.node,
            share = self.footprints.share,
            "bound pods exceed this namespace's share of memory: what this pod takes of its node is ignored"
        );
        None
    }

    /// Gives back what [`NeedsRoom::bind`] took.
    pub(super) fn unbind(&self, namespace: &str, bytes: usize) {
        self.footprints.release(namespace, bytes);
    }

    /// True if there is room for a bound pod.
    pub(super) fn binds(&self, namespace: &str, footprint: &Footprint) -> bool {
        self.footprints.has(namespace, BOUND + footprint.bytes())
    }

    /// Takes room for the needs of a pod, and returns how much. Without room it drops the pod's
    /// lists.
    pub(super) fn take(&mut self, pod: &mut Pod) -> usize {
        let bytes = pod.needs.bytes();
        if bytes == 0 || self.room.takes(&pod.namespace, None, bytes) {
            return bytes;
        }
        self.sweep();
        if self.room.takes(&pod.namespace, None, bytes) {
            return bytes;
        }
        pod.needs = Arc::new(pod.needs.in_short());
        0
    }

    /// Gives back the room of a pod that is gone, unless other pods still share its needs.
    pub(super) fn give_back(&mut self, pod: Arc<Pod>, bytes: usize) {
        let (needs, namespace) = (Arc::downgrade(&pod.needs), pod.namespace.clone());
        drop(pod);
        if needs.strong_count() == 0 {
            self.room.release(&namespace, bytes);
            return;
        }
        self.shared.push((needs, namespace, bytes));
        if self.shared.len() >= MOST_SHARED {
            self.sweep();
        }
    }

    pub(super) fn sweep(&mut self) {
        let room = &self.room;
        self.shared.retain(|(needs, namespace, bytes)| {
            let is_there = needs.strong_count() > 0;
            if !is_there {
                room.release(namespace, *bytes);
            }
            is_there
        });
    }
}

fn bytes_of(pod: &Pod, shares_needs: bool) -> usize {
    let needs = if shares_needs { 0 } else { OWN_NEEDS };
    MEMBER + pod.name.len() + needs
}
