//! A queue of events that are to be written. The namespaces take turns.
//!
//! Promises: many events of one namespace neither displace nor delay those of others. At most
//! [`MOST`] wait, and at most [`MOST_OF_ONE`] of one namespace. Events about one object are handed
//! out one at a time, in order.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The most events that wait. When the queue is full, the latest event of the largest namespace
/// makes room for one of a smaller namespace.
const MOST: usize = 4096;
/// The most events of one namespace that wait. This leaves room for others without dropping any.
const MOST_OF_ONE: usize = MOST / 4 * 3;

/// The queue is full and the event is dropped: no state depends on events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Full;

/// The sending end. Cheap to clone.
pub(crate) struct Sender<K: Eq + Hash, T>(Arc<Shared<K, T>>);

/// The receiving end, for a single consumer.
pub(crate) struct Receiver<K: Eq + Hash, T>(Arc<Shared<K, T>>);

/// The next event. No other event about its object is handed out before this is dropped.
pub(crate) struct Turn<K: Eq + Hash, T> {
    pub(crate) event: T,
    object: K,
    shared: Arc<Shared<K, T>>,
}

struct Shared<K, T> {
    state: Mutex<State<K, T>>,
    changed: Notify,
}

struct State<K, T> {
    waiting: HashMap<String, VecDeque<(K, T)>>,
    /// Namespaces with waiting events, the next one first.
    turns: VecDeque<String>,
    /// How many events wait.
    len: usize,
    /// Objects with an event that is being written.
    busy: HashSet<K>,
    senders: usize,
}

/// Makes a connected pair.
pub(crate) fn queue<K: Eq + Hash + Clone, T>() -> (Sender<K, T>, Receiver<K, T>) {
    let shared = Arc::new(Shared {
        state: Mutex::new(State {
            waiting: HashMap::new(),
            turns: VecDeque::new(),
            len: 0,
            busy: HashSet::new(),
            senders: 1,
        }),
        changed: Notify::new(),
    });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<K, T> Shared<K, T> {
    fn locked(&self) -> MutexGuard<'_, State<K, T>> {
        // Nothing under this lock can leave the state half-changed.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Eq + Hash + Clone, T> State<K, T> {
    fn add(&mut self, namespace: &str, object: K, event: T) -> Result<(), Full> {
        let own = self.waiting.get(namespace).map_or(0, VecDeque::len);
        if own >= MOST_OF_ONE || self.len >= MOST && !self.make_room(own) {
            return Err(Full);
        }
        if own == 0 {
            self.turns.push_back(namespace.to_owned());
        }
        let waiting = self.waiting.entry(namespace.to_owned()).or_default();
        waiting.push_back((object, event));
        self.len += 1;
        Ok(())
    }

    /// Drops the latest event of the largest namespace if it has more than `own`.
    fn make_room(&mut self, own: usize) -> bool {
        let longest = self.waiting.values_mut().max_by_key(|waiting| waiting.len());
        let Some(longest) = longest.filter(|longest| longest.len() > own + 1) else {
            return false;
        };
        longest.pop_back();
        self.len -= 1;
        true
    }

    /// The first event of the next namespace whose object has no event being written.
    fn take(&mut self) -> Option<(K, T)> {
        for _ in 0..self.turns.len() {
            let namespace = self.turns.pop_front()?;
            let waiting = self.waiting.get_mut(&namespace)?;
            // Events about one object stay in order.
            let free = waiting.iter().position(|(object, _)| !self.busy.contains(object));
            let taken = free.and_then(|free| waiting.remove(free));
            if waiting.is_empty() {
                self.waiting.remove(&namespace);
            } else {
                self.turns.push_back(namespace);
            }
            if let Some((object, event)) = taken {
                self.len -= 1;
                self.busy.insert(object.clone());
                return Some((object, event));
            }
        }
        None
    }
}

impl<K: Eq + Hash + Clone, T> Sender<K, T> {
    /// Adds an event about an object.
    ///
    /// # Errors
    /// [`Full`].
    pub(crate) fn add(&self, namespace: &str, object: K, event: T) -> Result<(), Full> {
        self.0.locked().add(namespace, object, event)?;
        self.0.changed.notify_one();
        Ok(())
    }
}

impl<K: Eq + Hash, T> Clone for Sender<K, T> {
    fn clone(&self) -> Self {
        self.0.locked().senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<K: Eq + Hash, T> Drop for Sender<K, T> {
    fn drop(&mut self) {
        self.0.locked().senders -= 1;
        self.0.changed.notify_one();
    }
}

impl<K: Eq + Hash + Clone, T> Receiver<K, T> {
    /// The next event; `None` once all senders are gone and the queue is empty. Cancel-safe.
    pub(crate) async fn next(&mut self) -> Option<Turn<K, T>> {
        loop {
            let changed = self.0.changed.notified();
            let (taken, is_over) = {
                let mut state = self.0.locked();
                (state.take(), state.senders == 0 && state.len == 0)
            };
            if let Some((object, event)) = taken {
                return Some(Turn {
                    event,
                    object,
                    shared: Arc::clone(&self.0),
                });
            }
            if is_over {
                return None;
            }
            changed.await;
        }
    }
}

impl<K: Eq + Hash, T> Drop for Turn<K, T> {
    fn drop(&mut self) {
        self.shared.locked().busy.remove(&self.object);
        self.shared.changed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    /// What is taken of all that waits.
    async fn all(receiver: &mut Receiver<&'static str, u32>) -> Vec<u32> {
        let mut all = Vec::new();
        while let Ok(Some(turn)) = timeout(Duration::from_secs(1), receiver.next()).await {
            all.push(turn.event);
        }
        all
    }

    #[tokio::test(start_paused = true)]
    async fn a_storm_in_one_namespace_neither_drops_nor_delays_events_of_others() {
        let (sender, mut receiver) = queue();
        let kept = (0..100_000).filter(|event| sender.add("storm", "a", *event).is_ok());
        assert_eq!(kept.count(), MOST_OF_ONE);
        for event in 0..3 {
            sender.add("calm", "b", 1_000_000 + event).unwrap();
        }
        let taken = all(&mut receiver).await;
        assert_eq!(taken.len(), MOST_OF_ONE + 3);
        assert_eq!(taken[..7], [0, 1_000_000, 1, 1_000_001, 2, 1_000_002, 3]);
    }

    #[tokio::test(start_paused = true)]
    async fn storms_in_many_namespaces_leave_room_for_one_more_and_no_more_wait_than_fit() {
        let (sender, mut receiver) = queue();
        for tenant in 0..10 {
            for event in 0..MOST_OF_ONE {
                let _ = sender.add(&format!("storm-{tenant}"), "a", u32::try_from(event).unwrap());
            }
        }
        assert_eq!(receiver.0.locked().len, MOST);
        sender.add("calm", "b", 1_000_000).unwrap();
        assert_eq!(receiver.0.locked().len, MOST);
        let taken = all(&mut receiver).await;
        assert_eq!(taken.len(), MOST);
        let turn = taken.iter().position(|event| *event == 1_000_000).unwrap();
        assert!(turn <= 10, "{turn}");
        let state = receiver.0.locked();
        assert!(state.waiting.is_empty() && state.turns.is_empty() && state.busy.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn events_about_one_object_are_written_one_after_the_other_and_others_beside_them() {
        let (sender, mut receiver) = queue();
        for (namespace, object, event) in [("one", "a", 1), ("one", "a", 2), ("other", "b", 3)] {
            sender.add(namespace, object, event).unwrap();
        }
        let first = receiver.next().await.unwrap();
        let beside = receiver.next().await.unwrap();
        assert_eq!((first.event, beside.event), (1, 3));
        let waits = timeout(Duration::from_secs(1), receiver.next()).await;
        assert!(waits.is_err());
        drop(first);
        assert_eq!(receiver.next().await.unwrap().event, 2);
    }

    #[tokio::test(start_paused = true)]
    async fn the_queue_ends_when_all_senders_are_gone_and_it_is_empty() {
        let (sender, mut receiver) = queue();
        let another = sender.clone();
        sender.add("ns", "a", 1).unwrap();
        drop(sender);
        assert!(receiver.next().await.is_some());
        let waits = timeout(Duration::from_secs(1), receiver.next()).await;
        assert!(waits.is_err());
        drop(another);
        assert!(receiver.next().await.is_none());
    }
}
