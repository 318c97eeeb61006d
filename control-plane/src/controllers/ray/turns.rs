//! Limits how many objects of one namespace are reconciled at once, how many of its RayJobs wait
//! for dashboards, and how many of its large objects are read. A tenant's pod can pose as a
//! dashboard and never answer, which takes a turn until the request times out. A large object takes
//! many times its size in memory while it is read.
//!
//! Promises: a namespace takes at most half of the turns that are free. So its share shrinks as
//! others take more, and it takes many namespaces to use up all turns.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// When to try an object again whose namespace has as many turns as it may have.
pub(super) const NEXT_TURN: Duration = Duration::from_secs(1);

/// Hands out turns.
#[derive(Clone)]
pub(super) struct Turns {
    most: usize,
    /// By namespace. No entry is zero.
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

/// A turn, until it is dropped.
pub(super) struct Turn {
    namespace: String,
    turns: Turns,
}

/// The namespace has as many turns as it may have.
pub(super) struct NoTurn;

impl Turns {
    /// Hands out at most this many turns at the same time.
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            taken: Arc::default(),
        }
    }

    /// A turn for a namespace, unless it has as many as it may have.
    pub(super) fn take(&self, namespace: &str) -> Option<Turn> {
        let mut taken = self.locked();
        let own = taken.get(namespace).copied().unwrap_or(0);
        let free = self.most.saturating_sub(taken.values().sum());
        if own.saturating_mul(2) >= free {
            return None;
        }
        taken.insert(namespace.to_owned(), own.saturating_add(1));
        Some(Turn {
            namespace: namespace.to_owned(),
            turns: self.clone(),
        })
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        // No holder of this lock can leave the map half-changed.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut taken = self.turns.locked();
        if let Some(own) = taken.get_mut(&self.namespace) {
            *own = own.saturating_sub(1);
            if *own == 0 {
                taken.remove(&self.namespace);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_of(turns: &Turns, namespace: &str) -> Vec<Turn> {
        std::iter::from_fn(|| turns.take(namespace)).collect()
    }

    #[test]
    fn a_namespace_that_takes_all_it_can_leaves_turns_for_the_next() {
        let turns = Turns::new(96);
        let held: Vec<Vec<Turn>> = (0..8)
            .map(|index| all_of(&turns, &format!("ns-{index}")))
            .collect();
        assert_eq!(held[0].len(), 32);
        assert!(held.iter().all(|held| !held.is_empty()));
        assert!(turns.take("another").is_some());
    }

    #[test]
    fn a_turn_that_is_over_is_free_again() {
        let turns = Turns::new(3);
        let first = turns.take("a");
        let second = turns.take("a");
        assert_eq!((first.is_some(), second.is_some()), (true, false));
        drop(first);
        assert!(turns.take("a").is_some());
        assert!(turns.locked().is_empty(), "no namespace is remembered");
    }
}
