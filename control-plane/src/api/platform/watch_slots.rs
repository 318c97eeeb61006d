//! Slots for watches: how many there may be at the same time.
//!
//! Who may watch one namespace is often a tenant, and who may watch all of them a platform. So: one
//! namespace has a part of the places, and all watches of single namespaces together leave some to
//! those of everything. Nobody waits: who finds no place is told so.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::k8s::memory_limit::{self, Share};

use super::error_details::{CallError, Reason};

/// Watches over all callers, if there is memory for them; and at least.
const ALL: (usize, usize) = (256, 32);
/// The memory for watches whose callers read nothing: what HTTP/2 buffers of a stream, and a
/// message.
const MEMORY: Share = Share {
    parts: 8,
    each: 512 << 10,
};

/// The places, and whose they are.
#[derive(Clone)]
pub(super) struct WatchSlots {
    most: SlotLimits,
    taken: Arc<Mutex<Counts>>,
}

/// How many there may be.
#[derive(Clone, Copy, Debug)]
struct SlotLimits {
    all: usize,
    /// Of these, watches of single namespaces, whichever they are.
    of_namespaces: usize,
    /// Of these, watches of one namespace. It may be the only one that a platform uses, and each of
    /// its JobSets be watched by name.
    of_one: usize,
}

#[derive(Default)]
struct Counts {
    /// Watches of everything.
    wide: usize,
    /// Watches of single namespaces, all of them and by namespace.
    narrow: usize,
    of: HashMap<String, usize>,
}

impl Default for WatchSlots {
    fn default() -> Self {
        Self::with_memory(memory_limit::limit())
    }
}

/// The place of one watch, until it is dropped.
pub(super) struct WatchSlot {
    slots: WatchSlots,
    namespace: String,
}

impl WatchSlots {
    /// As many as so much memory is enough for.
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

    /// A place for one who watches this namespace (empty: all).
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

    /// As many as there are for watches of this namespace.
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
