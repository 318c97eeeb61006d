//! States that wait to be reported: at most the latest of each incarnation, so that a slow or
//! absent control plane costs no memory.
//!
//! Promise: a state that is put aside is reported when its reader asks for that, or with the next
//! state of its incarnation, and never in place of a later one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::types::{ContainerId, Incarnation, WorkerState};

/// Most incarnations that wait to be reported as gone. The next Hello covers the others by leaving
/// them out.
const MAX_GONE: usize = 4096;

/// Written by the driver, emptied by the link. A reader gets what is there, and never waits for
/// more.
#[derive(Debug, Default)]
pub struct Outbox(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    waiting: BTreeMap<ContainerId, WorkerState>,
    /// States that may wait until the reader asks for them.
    aside: BTreeMap<ContainerId, WorkerState>,
    /// Incarnations that are no longer known. They are reported after all waiting states: a late
    /// state would make one known again.
    gone: BTreeSet<Incarnation>,
    /// The number of the current reader.
    reader: u64,
    /// Its task, while nothing waits.
    task: Option<Waker>,
}

impl Outbox {
    /// Adds states; each replaces an older one of its incarnation.
    pub fn put(&self, states: impl IntoIterator<Item = WorkerState>) {
        let mut inner = self.lock();
        for state in states {
            inner.gone.remove(&state.incarnation);
            inner.aside.remove(&state.incarnation.container);
            inner.waiting.insert(state.incarnation.container.clone(), state);
        }
        wake(inner);
    }

    /// Adds states about which nobody has to know soon. Each replaces an older one of its
    /// incarnation, and takes its place if that one waits.
    pub fn put_aside(&self, states: impl IntoIterator<Item = WorkerState>) {
        let mut inner = self.lock();
        for state in states {
            let container = &state.incarnation.container;
            if let Some(waiting) = inner.waiting.get_mut(container) {
                *waiting = state;
            } else {
                inner.aside.insert(container.clone(), state);
            }
        }
    }

    /// Adds incarnations that are no longer known.
    pub fn put_gone(&self, gone: impl IntoIterator<Item = Incarnation>) {
        let mut inner = self.lock();
        for incarnation in gone {
            inner.aside.remove(&incarnation.container);
            if inner.gone.len() < MAX_GONE {
                inner.gone.insert(incarnation);
            }
        }
        wake(inner);
    }

    /// Forgets what waits, for a reader of a snapshot that holds it.
    pub fn clear(&self) {
        let mut inner = self.lock();
        inner.waiting.clear();
        inner.aside.clear();
        inner.gone.clear();
    }

    /// Takes what waits, up to `max` states.
    #[must_use]
    pub fn take(&self, max: usize) -> Vec<WorkerState> {
        self.lock().take(max)
    }

    /// A new reader. Former readers get nothing from now on, and end.
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

/// Wakes the reader, if there is something to take.
fn wake(mut inner: MutexGuard<'_, Inner>) {
    let task = if inner.is_empty() { None } else { inner.task.take() };
    drop(inner);
    if let Some(task) = task {
        task.wake();
    }
}

impl Inner {
    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.gone.is_empty()
    }

    fn take_gone(&mut self) -> Vec<Incarnation> {
        if self.waiting.is_empty() {
            std::mem::take(&mut self.gone).into_iter().collect()
        } else {
            Vec::new()
        }
    }

    fn take(&mut self, max: usize) -> Vec<WorkerState> {
        let count = max.min(self.waiting.len());
        std::iter::from_fn(|| self.waiting.pop_first())
            .take(count)
            .map(|(_, state)| state)
            .collect()
    }
}

/// What a reader takes at once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// States that have changed.
    pub states: Vec<WorkerState>,
    /// Incarnations that are no longer known.
    pub gone: Vec<Incarnation>,
}

/// Takes what waits, until another reader replaces it.
#[derive(Debug)]
pub struct Reader {
    outbox: Arc<Outbox>,
    number: u64,
}

impl Reader {
    /// What waits, up to `max` states, and the incarnations that are gone, once there is anything;
    /// `None` if another reader has replaced this one. For one task.
    pub fn poll_take(&self, max: usize, cx: &Context<'_>) -> Poll<Option<Batch>> {
        let mut inner = self.outbox.lock();
        if inner.reader != self.number {
            return Poll::Ready(None);
        }
        if inner.is_empty() {
            inner.task = Some(cx.waker().clone());
            return Poll::Pending;
        }
        let states = inner.take(max);
        let gone = inner.take_gone();
        Poll::Ready(Some(Batch { states, gone }))
    }

    /// Has the states that were put aside reported.
    pub fn recall(&self) {
        let mut inner = self.outbox.lock();
        if inner.reader == self.number {
            let aside = std::mem::take(&mut inner.aside);
            inner.waiting.extend(aside);
            wake(inner);
        }
    }

    /// The same as [`Self::poll_take`], as a future.
    #[cfg(test)]
    pub(crate) async fn next(&self, max: usize) -> Option<Vec<WorkerState>> {
        let taken = std::future::poll_fn(|cx| self.poll_take(max, cx)).await;
        taken.map(|batch| batch.states)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use futures::FutureExt as _;

    use super::*;
    use crate::worker::types::{AgentPhase, Epoch, Generation, Heartbeat, Phase, Progress, UnixNanos};

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
            generation: Generation(1),
            epoch: Epoch(1),
            counted_restarts: 1,
            revision,
            since: UnixNanos(0),
            detail: String::new(),
            heartbeat: Heartbeat::Well,
            released_generation: None,
            starts: None,
            standbys: None,
            progress: Progress::default(),
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
    async fn an_incarnation_is_reported_gone_after_its_last_state() {
        let outbox = Arc::new(Outbox::default());
        let reader = outbox.reader();
        let gone = |container: &str| state(container, 0).incarnation;
        outbox.put([state("a", 1), state("b", 2)]);
        outbox.put_gone([gone("a"), gone("c")]);
        let next = async || {
            let batch = std::future::poll_fn(|cx| reader.poll_take(1, cx)).await.unwrap();
            (batch.states, batch.gone)
        };
        assert_eq!(next().await, (vec![state("a", 1)], vec![]));
        assert_eq!(next().await, (vec![state("b", 2)], vec![gone("a"), gone("c")]));
        // One that is known again is not reported as gone.
        outbox.put_gone([gone("a")]);
        outbox.put([state("a", 3)]);
        assert_eq!(next().await, (vec![state("a", 3)], vec![]));
        // No reader takes them: the next Hello covers the rest.
        outbox.put_gone((0..2 * MAX_GONE).map(|number| gone(&number.to_string())));
        assert_eq!(next().await.1.len(), MAX_GONE);
    }

    #[tokio::test]
    async fn what_is_put_aside_waits_for_its_reader_and_never_replaces_a_later_state() {
        let outbox = Arc::new(Outbox::default());
        let (former, reader) = (outbox.reader(), outbox.reader());
        let next = || reader.next(usize::MAX).now_or_never().flatten();
        outbox.put_aside([state("a", 1), state("b", 2)]);
        former.recall();
        assert_eq!(next(), None);
        outbox.put([state("a", 3)]);
        outbox.put_aside([state("a", 4)]);
        assert_eq!(next(), Some(vec![state("a", 4)]), "the newest one of what waits");
        outbox.put_aside([state("c", 5), state("d", 6)]);
        outbox.put([state("c", 7)]);
        outbox.put_gone([state("d", 0).incarnation]);
        reader.recall();
        assert_eq!(next(), Some(vec![state("b", 2), state("c", 7)]));
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
    async fn a_reader_that_was_replaced_takes_nothing() {
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
