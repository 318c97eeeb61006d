//! Limits how many workers without pods all groups together may expect.
//!
//! A JobSet of a kilobyte can ask for the largest group ([`lockstep_core::jobset::limits`]).
//! Without a quota there can be any number of such JobSets, suspended or with refused pods. So the
//! memory of a group must follow the pods that exist.
//!
//! Promises: a worker with a pod is free, and each pod allows [`FOR_EACH_POD`] more workers without
//! one. All other workers of all groups are at most [`UNSEEN`]. A group without room has almost no
//! pods, so its task would have hardly any worker to restart. It gets a task once its pods exist. A
//! group keeps its task while its pods are gone, unless its own namespace has more than [`UNSEEN`].

use std::collections::HashMap;
use std::hash::Hash;

use lockstep_core::jobset::limits::MOST_WORKERS;

/// The most workers without pods that all groups together may expect: 130 MB at 1.2 kB each. There
/// is room for one group of the largest size without any pod, beside hundreds of small groups.
pub(super) const UNSEEN: u64 = MOST_WORKERS as u64 * 11 / 10;

/// Workers without pods that a group may expect for each of its pods.
pub(super) const FOR_EACH_POD: u64 = 10;

/// The workers that a group expects, and the pods that it has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Demand {
    pub(super) workers: u64,
    pub(super) pods: usize,
}

impl Demand {
    /// Workers without pods, beyond those that its pods allow.
    fn unseen(self) -> u64 {
        let seen = u64::try_from(self.pods)
            .unwrap_or(u64::MAX)
            .saturating_mul(FOR_EACH_POD);
        self.workers.saturating_sub(seen)
    }
}

/// The workers without pods of each group.
#[derive(Debug)]
pub(super) struct Budget<K> {
    unseen: HashMap<K, (String, u64)>,
    sum: u64,
    by_namespace: HashMap<String, u64>,
}

impl<K> Default for Budget<K> {
    fn default() -> Self {
        Self {
            unseen: HashMap::new(),
            sum: 0,
            by_namespace: HashMap::new(),
        }
    }
}

impl<K: Eq + Hash> Budget<K> {
    /// Takes room for a new group. Returns false if there is none. The group keeps its room until
    /// the next call for it, or until it is released.
    pub(super) fn takes(&mut self, key: K, namespace: &str, demand: Demand) -> bool {
        self.release(&key);
        let unseen = demand.unseen();
        let fits = unseen == 0 || self.sum.saturating_add(unseen) <= UNSEEN;
        if fits {
            self.insert(key, namespace, unseen);
        }
        fits
    }

    /// Like [`Budget::takes`], for a group that has a task. Only the workers of its own namespace
    /// count.
    pub(super) fn keeps(&mut self, key: K, namespace: &str, demand: Demand) -> bool {
        self.release(&key);
        let unseen = demand.unseen();
        let own = self.by_namespace.get(namespace).copied().unwrap_or(0);
        let fits = unseen == 0 || own.saturating_add(unseen) <= UNSEEN;
        if fits {
            self.insert(key, namespace, unseen);
        }
        fits
    }

    fn insert(&mut self, key: K, namespace: &str, unseen: u64) {
        if unseen == 0 {
            return;
        }
        self.sum = self.sum.saturating_add(unseen);
        let own = self.by_namespace.entry(namespace.to_owned()).or_default();
        *own = own.saturating_add(unseen);
        self.unseen.insert(key, (namespace.to_owned(), unseen));
    }

    /// Releases the room of a group that ends.
    pub(super) fn release(&mut self, key: &K) {
        let Some((namespace, unseen)) = self.unseen.remove(key) else {
            return;
        };
        self.sum = self.sum.saturating_sub(unseen);
        if let Some(own) = self.by_namespace.get_mut(&namespace) {
            *own = own.saturating_sub(unseen);
            if *own == 0 {
                self.by_namespace.remove(&namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: u64 = MOST_WORKERS as u64;

    fn takes(budget: &mut Budget<&'static str>, key: &'static str, workers: u64, pods: usize) -> bool {
        budget.takes(key, "ns", Demand { workers, pods })
    }

    #[test]
    fn the_largest_group_finds_room_before_it_has_pods_and_a_second_one_does_not() {
        let mut budget = Budget::default();
        assert!(takes(&mut budget, "a", LARGEST, 0));
        assert!(!takes(&mut budget, "b", LARGEST, 0));
        // What is looked at again is not counted twice.
        assert!(takes(&mut budget, "a", LARGEST, 0));
        budget.release(&"a");
        assert!(takes(&mut budget, "b", LARGEST, 0));
    }

    #[test]
    fn a_group_with_pods_needs_no_room() {
        let mut budget = Budget::default();
        assert!(takes(&mut budget, "bomb", LARGEST, 0));
        assert!(takes(&mut budget, "another", UNSEEN - LARGEST, 0));
        assert!(!takes(&mut budget, "small", 1, 0), "there is none left");
        assert!(takes(&mut budget, "small", 8, 1));
        assert!(takes(&mut budget, "large", 10_000, 1_000));
        assert!(!takes(&mut budget, "large", 10_000, 999), "its pods have gone");
    }

    #[test]
    fn room_follows_the_pods_that_come_and_go() {
        let mut budget = Budget::default();
        assert!(takes(&mut budget, "a", LARGEST, 0));
        assert!(takes(&mut budget, "a", LARGEST, 9_500));
        assert!(
            takes(&mut budget, "b", LARGEST, 0),
            "a has nearly all of its workers in view"
        );
        assert!(!takes(&mut budget, "a", LARGEST, 0));
        assert!(takes(&mut budget, "b", LARGEST, 0), "it is as it was");
    }

    #[test]
    fn a_group_whose_pods_are_gone_for_a_moment_keeps_its_task_even_if_others_take_all_room() {
        let mut budget = Budget::default();
        let demand = |workers, pods| Demand { workers, pods };
        assert!(budget.takes("train", "good", demand(4, 4)));
        assert!(budget.takes("bomb", "evil", demand(UNSEEN, 0)));
        assert!(!budget.takes("new", "good", demand(4, 0)));
        assert!(budget.keeps("train", "good", demand(4, 0)));
        // Its own namespace has no more than all have.
        assert!(!budget.keeps("grown", "evil", demand(1, 0)));
    }
}
