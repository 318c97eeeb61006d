//! Slots for watches: how many there may be at the same time.
//!
//! A client that watches one namespace is often a tenant; one that watches all of them is a
//! platform. So one namespace has only a part of the slots, and watches of single namespaces
//! together leave some to watches of all namespaces. A watch without a slot is refused at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::k8s::memory_limit::{self, Share};

use super::error_details::{CallError, Reason};

/// Watches of all callers: at most, if there is memory for them, and at least.
const ALL: (usize, usize) = (256, 32);
/// The memory for watches whose callers read nothing: the HTTP/2 buffer of a stream, and a message.
const MEMORY: Share = Share {
    parts: 8,
    each: 512 << 10,
};

/// The slots, and who has them.
#[derive(Clone)]
pub(super) struct WatchSlots {
    most: SlotLimits,
    taken: Arc<Mutex<Counts>>,
}

/// Limits of watches.
#[derive(Clone, Copy, Debug)]
struct SlotLimits {
    all: usize,
    /// Of these, watches of single namespaces, all together.
    of_namespaces: usize,
    /// Of these, watches of one namespace. A platform may use only one namespace, and watch each of
    /// its JobSets by name.
    of_one: usize,
}

#[derive(Default)]
struct Counts {
    /// Watches of all namespaces.
    wide: usize,
    /// Watches of single namespaces: in total, and by namespace.
    narrow: usize,
    of: HashMap<String, usize>,
}

impl Default for WatchSlots {
    fn default() -> Self {
        Self::with_memory(memory_limit::limit())
    }
}

/// The slot of one watch, until it is dropped.
pub(super) struct WatchSlot {
    slots: WatchSlots,
    namespace: String,
}

impl WatchSlots {
    /// As many slots as this much memory allows.
    fn with_memory(memory: usize) -> Self {
        let all = MEMORY.fits(memory).clamp(ALL.1, ALL.0);
        Self {
            most: SlotLimits {
                all,
                of_namespaces: all / 4 * 3,
                of_one: all / 2,
            },
            taken: Arc::default(),
        }
    }

    /// A slot for a watch of this namespace (empty: all).
    ///
    /// # Errors
    /// If there is none.
    pub(super) fn take(&self, namespace: &str) -> Result<WatchSlot, CallError> {
        let SlotLimits {
            all,
            of_namespaces,
            of_one,
        } = self.most;
        let mut taken = self.taken();
        let none = |limit: usize, of: &str| {
            let message = format!("more than {limit} watches{of} at once");
            Err(CallError::new(Reason::TooManyWatches, message).with("limit", limit.to_string()))
        };
        if taken.wide + taken.narrow >= all {
            return none(all, "");
        }
        if namespace.is_empty() {
            taken.wide += 1;
        } else {
            let of_it = taken.of.get(namespace).copied().unwrap_or_default();
            if of_it >= of_one {
                return none(of_one, " of one namespace");
            }
            if taken.narrow >= of_namespaces {
                return none(of_namespaces, " of single namespaces");
            }
            taken.narrow += 1;
            taken.of.insert(namespace.to_owned(), of_it + 1);
        }
        Ok(WatchSlot {
            slots: self.clone(),
            namespace: namespace.to_owned(),
        })
    }

    fn taken(&self) -> MutexGuard<'_, Counts> {
        // Nothing that holds this lock can leave it half-changed.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WatchSlot {
    fn drop(&mut self) {
        let mut taken = self.slots.taken();
        if self.namespace.is_empty() {
            taken.wide -= 1;
            return;
        }
        taken.narrow -= 1;
        if let Some(of_it) = taken.of.get_mut(&self.namespace) {
            *of_it -= 1;
            if *of_it == 0 {
                taken.of.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all slots for watches of this namespace.
    fn fill(slots: &WatchSlots, namespace: &str) -> Vec<WatchSlot> {
        (0..2 * ALL.0).map_while(|_| slots.take(namespace).ok()).collect()
    }

    #[test]
    fn one_namespace_keeps_no_other_out() {
        let slots = WatchSlots::with_memory(1 << 30);
        let greedy = fill(&slots, "greedy");
        assert_eq!(greedy.len(), slots.most.of_one);
        assert!(slots.take("greedy").is_err());
        let _other = slots.take("other").unwrap();
        let _everything = slots.take("").unwrap();
        drop(greedy);
        slots.take("greedy").unwrap();
    }

    #[test]
    fn watches_of_namespaces_leave_places_to_those_of_everything() {
        let slots = WatchSlots::with_memory(1 << 30);
        let narrow: Vec<Vec<WatchSlot>> = (0..ALL.0).map(|n| fill(&slots, &format!("n{n}"))).collect();
        assert_eq!(
            narrow.iter().map(Vec::len).sum::<usize>(),
            slots.most.of_namespaces
        );
        let wide = fill(&slots, "");
        assert_eq!(wide.len(), ALL.0 - slots.most.of_namespaces);
        drop((narrow, wide));
        let taken = slots.taken();
        assert_eq!((taken.wide, taken.narrow, taken.of.len()), (0, 0, 0));
    }

    #[test]
    fn unread_watches_take_a_part_of_the_memory() {
        let slots = WatchSlots::with_memory(256 << 20);
        let wide = fill(&slots, "");
        assert_eq!(wide.len() * MEMORY.each, (256 << 20) / MEMORY.parts);
        let slots = WatchSlots::with_memory(64 << 20);
        assert_eq!(fill(&slots, "one").len(), ALL.1 / 2);
    }

    #[test]
    fn all_places_may_be_those_of_everything() {
        let slots = WatchSlots::with_memory(1 << 30);
        let wide = fill(&slots, "");
        assert_eq!(wide.len(), ALL.0);
        assert!(slots.take("any").is_err());
    }
}
