//! What waits to be reported: at most the latest state of each incarnation, so that a slow or absent control plane costs no memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::types::{ContainerId, WorkerState};

/// Written by the driver, emptied by the link. Nothing waits for more to come: whoever takes gets what is there.
#[derive(Debug, Default)]
pub struct Outbox(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<ContainerId, WorkerState>,
    /// The reader that there is.
    reader: u64,
    /// Its task, while nothing waits.
    task: Option<Waker>,
}

impl Outbox {
    /// Adds states; each replaces an older one of its incarnation.
    pub fn put(&self, states: impl IntoIterator<Item = WorkerState>) {
        let mut inner = self.lock();
        for state in states {
            inner.waiting.insert(state.incarnation.container.clone(), state);
        }
        let task = if inner.waiting.is_empty() {
            None
        } else {
            inner.task.take()
        };
        drop(inner);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Takes what waits, up to `most` states.
    #[must_use]
    pub fn take(&self, most: usize) -> Vec<WorkerState> {
        self.lock().take(most)
    }

    /// Who takes from now on. Those of before get nothing any more, and hear that they are at their end.
    #[must_use]
    pub fn reader(self: &Arc<Self>) -> Reader {
        let mut inner = self.lock();
        inner.reader += 1;
        let (number, task) = (inner.reader, inner.task.take());
        drop(inner);
        if let Some(task) = task {
            task.wake();
        }
        Reader {
            outbox: Arc::clone(self),
            number,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn take(&mut self, most: usize) -> Vec<WorkerState> {
        let count = most.min(self.waiting.len());
        std::iter::from_fn(|| self.waiting.pop_first())
            .take(count)
            .map(|(_, state)| state)
            .collect()
    }
}

/// Takes what waits, until there is another one.
#[derive(Debug)]
pub struct Reader {
    outbox: Arc<Outbox>,
    number: u64,
}

impl Reader {
    /// What waits, up to `most` states, once anything does; `None` where there is another reader. For one task.
    pub fn poll_take(&self, most: usize, cx: &Context<'_>) -> Poll<Option<Vec<WorkerState>>> {
        let mut inner = self.outbox.lock();
        if inner.reader != self.number {
            return Poll::Ready(None);
        }
        if inner.waiting.is_empty() {
            inner.task = Some(cx.waker().clone());
            return Poll::Pending;
        }
        Poll::Ready(Some(inner.take(most)))
    }

    /// The same, to wait for.
    #[cfg(test)]
    pub(crate) async fn next(&self, most: usize) -> Option<Vec<WorkerState>> {
        std::future::poll_fn(|cx| self.poll_take(most, cx)).await
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::worker::types::{AgentPhase, Heartbeat, Incarnation, Phase};

    pub(crate) fn state(container: &str, revision: u64) -> WorkerState {
        WorkerState {
            group: "g".into(),
            job: "job".into(),
            index: 0,
            container: "worker".into(),
            incarnation: Incarnation {
                pod: "p".into(),
                container: container.into(),
            },
            namespace: "default".into(),
            pod_name: "pod".into(),
            phase: Phase::Agent(AgentPhase::Running),
            generation: 1,
            epoch: 1,
            counter: 1,
            revision,
            since: 0,
            detail: String::new(),
            heartbeat: Heartbeat::Well,
            released_at: None,
        }
    }

    #[tokio::test]
    async fn keeps_the_latest_state_of_each_incarnation() {
        let outbox = Arc::new(Outbox::default());
        let reader = outbox.reader();
        outbox.put([state("a", 1), state("b", 2), state("c", 4)]);
        outbox.put([state("a", 3)]);
        let taken = reader.next(2).await.unwrap();
        let revisions: Vec<u64> = taken.iter().map(|state| state.revision).collect();
        assert_eq!(revisions, [3, 2]);
        assert_eq!(reader.next(usize::MAX).await.unwrap(), [state("c", 4)]);
    }

    #[tokio::test]
    async fn a_waiter_is_woken() {
        let outbox = Arc::new(Outbox::default());
        let reader = outbox.reader();
        let waiter = tokio::spawn(async move { reader.next(usize::MAX).await });
        tokio::task::yield_now().await;
        outbox.put([state("a", 1)]);
        assert_eq!(waiter.await.unwrap().unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_reader_that_another_has_followed_takes_nothing() {
        let outbox = Arc::new(Outbox::default());
        let former = outbox.reader();
        let waiter = tokio::spawn(async move { former.next(usize::MAX).await });
        tokio::task::yield_now().await;
        let present = outbox.reader();
        assert_eq!(waiter.await.unwrap(), None);
        outbox.put([state("a", 1)]);
        assert_eq!(present.next(usize::MAX).await.unwrap().len(), 1);
    }
}
