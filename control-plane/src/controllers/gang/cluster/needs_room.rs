//! The memory limit for what pods of gangs need of nodes.

use std::sync::{Arc, Weak};

use lockstep_core::gang::{Needs, Pod};

use crate::k8s::memory_limit;
use crate::k8s::watch::namespace_budget::Budget;

/// Shared needs are swept after this many removed pods.
const MOST_SHARED: usize = 1_024;

/// The room for long lists in the needs of gang pods, in bytes.
#[derive(Debug)]
pub(super) struct NeedsRoom {
    pub(super) room: Budget,
    /// The needs of removed pods that other pods still share, with their namespace and size.
    shared: Vec<(Weak<Needs>, String, usize)>,
}

impl Default for NeedsRoom {
    fn default() -> Self {
        let memory = memory_limit::limit();
        Self {
            room: Budget::new(memory / 64, memory / 16),
            shared: Vec::new(),
        }
    }
}

impl NeedsRoom {
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
