//! A coalescing queue of keys.
//!
//! Promises: a key is handed out at least once after its last `add`, and at most once per drain.
//! The queue never holds more than the distinct keys, however fast the producers are. Keys come out
//! in the order in which they were first added, so none starves. A key means "look again", never
//! "this happened".

use std::{
    collections::{HashSet, VecDeque},
    hash::Hash,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
    task::{Context, Poll, Waker},
};

use futures::Stream;

/// The producing end: cheap to clone, never blocks, never grows without bound.
pub struct Notifier<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

/// The consuming end: a stream of keys, each drained once. Ends when every [`Notifier`] is gone and
/// nothing is left.
pub struct Notified<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

struct Shared<T> {
    /// The waiting keys in order; `queued` holds the same keys for lookup.
    queue: VecDeque<T>,
    queued: HashSet<T>,
    waker: Option<Waker>,
    notifiers: usize,
}

/// Makes a connected pair.
pub fn channel<T: Eq + Hash + Clone>() -> (Notifier<T>, Notified<T>) {
    let shared = Arc::new(Mutex::new(Shared {
        queue: VecDeque::new(),
        queued: HashSet::new(),
        waker: None,
        notifiers: 1,
    }));
    (
        Notifier {
            shared: Arc::clone(&shared),
        },
        Notified { shared },
    )
}

fn locked<T>(shared: &Mutex<Shared<T>>) -> std::sync::MutexGuard<'_, Shared<T>> {
    // Nothing under this lock can leave the set half-changed, so a panic elsewhere does not make it
    // unusable.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Eq + Hash + Clone> Notifier<T> {
    /// Asks the consumer to look at `key` again.
    pub fn add(&self, key: T) {
        self.extend([key]);
    }

    /// Asks the consumer to look at each of `keys` again.
    pub fn extend(&self, keys: impl IntoIterator<Item = T>) {
        let waker = {
            let mut shared = locked(&self.shared);
            for key in keys {
                if shared.queued.insert(key.clone()) {
                    shared.queue.push_back(key);
                }
            }
            if shared.queue.is_empty() {
                None
            } else {
                shared.waker.take()
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Clone for Notifier<T> {
    fn clone(&self) -> Self {
        locked(&self.shared).notifiers += 1;
        Self {
            shared: Arc::clone(&self.shared),
        }
    }
}

impl<T> Drop for Notifier<T> {
    fn drop(&mut self) {
        let waker = {
            let mut shared = locked(&self.shared);
            shared.notifiers -= 1;
            if shared.notifiers == 0 {
                shared.waker.take()
            } else {
                None
            }
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T: Eq + Hash + Clone> Notified<T> {
    /// Waits for a key and takes it; `None` once every [`Notifier`] is gone. Cancel-safe.
    pub async fn next(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| self.poll_key(cx)).await
    }

    fn poll_key(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let mut shared = locked(&self.shared);
        if let Some(key) = shared.queue.pop_front() {
            shared.queued.remove(&key);
            return Poll::Ready(Some(key));
        }
        if shared.notifiers == 0 {
            return Poll::Ready(None);
        }
        shared.waker = Some(cx.waker().clone());
        Poll::Pending
    }
}

impl<T: Eq + Hash + Clone> Stream for Notified<T> {
    type Item = T;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.get_mut().poll_key(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        future::Future,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn poll<T: Eq + Hash + Clone>(notified: &mut Notified<T>) -> Poll<Option<T>> {
        let mut next = std::pin::pin!(notified.next());
        next.as_mut().poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_key_added_twice_comes_out_once_and_again_after_the_next_add() {
        let (notifier, mut notified) = channel();
        notifier.add("a");
        notifier.add("b");
        notifier.add("a");
        assert_eq!(poll(&mut notified), Poll::Ready(Some("a")));
        assert_eq!(poll(&mut notified), Poll::Ready(Some("b")));
        assert_eq!(poll(&mut notified), Poll::Pending);
        notifier.add("a");
        assert_eq!(poll(&mut notified), Poll::Ready(Some("a")));
    }

    #[test]
    fn remaining_keys_are_drained_before_the_end() {
        let (notifier, mut notified) = channel();
        notifier.extend(["a", "b"]);
        drop(notifier.clone());
        drop(notifier);
        assert_eq!(poll(&mut notified), Poll::Ready(Some("a")));
        assert_eq!(poll(&mut notified), Poll::Ready(Some("b")));
        assert_eq!(poll(&mut notified), Poll::Ready(None));
    }

    #[tokio::test]
    async fn a_waiting_consumer_is_woken_by_a_key_and_by_the_end() {
        let (notifier, mut notified) = channel();
        let consumer = tokio::spawn(async move {
            let mut seen = Vec::new();
            while let Some(key) = notified.next().await {
                seen.push(key);
            }
            seen
        });
        tokio::task::yield_now().await;
        notifier.add(1);
        tokio::task::yield_now().await;
        notifier.add(2);
        drop(notifier);
        assert_eq!(consumer.await.unwrap(), [1, 2]);
    }
}
