//! The state of all groups. Each group's task writes its newest state here, through a [`Post`], and
//! the platform API and the status page read it. Changes are numbered in their order.

pub(crate) mod history;
pub(crate) mod question;

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lockstep_api::JobSet;
use lockstep_core::restart::{
    Announcement, Cause, Generation, GroupPhase, Observed, RestartLevel, UnixNanos,
};
use tokio::sync::{mpsc, watch};

use history::History;
use question::{Question, QuestionSender};

/// Namespace and name of a JobSet.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// The state of a group after one step of its coordinator.
#[derive(Debug)]
pub struct Snapshot {
    /// The JobSet that the step observed.
    pub jobset: Arc<JobSet>,
    /// What the coordinator decided on.
    pub observed: Arc<Observed>,
    /// What the coordinator is doing.
    pub phase: GroupPhase,
    /// The generation that all workers should run.
    pub generation: Generation,
    /// The last generation that all workers have run.
    pub released: Generation,
    /// Restarts that count towards `maxRestarts`.
    pub restarts: u32,
    /// Why the last restart began.
    pub cause: Option<Cause>,
    /// The highest level that the last restart reached.
    pub level: Option<RestartLevel>,
}

/// The groups of this replica.
pub struct Board {
    leads: watch::Sender<bool>,
    inner: Mutex<Inner>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct Inner {
    /// The number of the latest change.
    latest: u64,
    /// How many groups have been removed.
    removals: u64,
    groups: BTreeMap<Key, Posted>,
    by_change: BTreeMap<u64, Key>,
}

/// The last restarts of a group. Its task writes them, callers read them.
type Shared = Arc<Mutex<History>>;

struct Posted {
    /// The number of the [`Post`] that shows it.
    owner: u64,
    questions: QuestionSender,
    history: Shared,
    change: u64,
    state: Arc<Snapshot>,
}

/// Selects groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Filter {
    /// Empty: all.
    pub(crate) namespace: String,
    /// Empty: all.
    pub(crate) name: String,
}

impl Filter {
    fn takes(&self, key: &Key) -> bool {
        (self.namespace.is_empty() || self.namespace == key.namespace)
            && (self.name.is_empty() || self.name == key.name)
    }
}

impl Board {
    /// An empty board, for a replica that does not lead yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::new(Self {
            leads: watch::Sender::new(false),
            inner: Mutex::default(),
            changed: watch::Sender::new(0),
        })
    }

    /// Records that this replica leads. It leads until it ends.
    pub fn set_leading(&self) {
        self.leads.send_replace(true);
    }

    /// True if this replica leads.
    pub(crate) fn is_leading(&self) -> bool {
        *self.leads.borrow()
    }

    /// A receiver that changes when this replica begins to lead.
    pub(crate) fn subscribe_leading(&self) -> watch::Receiver<bool> {
        self.leads.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // No holder of this lock can leave the state half-changed.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the post of this JobSet's group, whose history begins `now`. The group appears with
    /// its first state, and disappears when the post is dropped.
    #[must_use]
    pub fn open_post(self: &Arc<Self>, namespace: &str, name: &str, now: UnixNanos) -> Post {
        let mut inner = self.lock();
        inner.latest += 1;
        let owner = inner.latest;
        drop(inner);
        let (question_sender, questions) = question::channel();
        Post {
            board: Arc::clone(self),
            question_sender,
            questions,
            history: Arc::new(Mutex::new(History::new(now))),
            key: Key {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
            },
            owner,
        }
    }

    /// True if the group of this JobSet has a state here.
    #[must_use]
    pub fn has_group(&self, namespace: &str, name: &str) -> bool {
        let key = Key {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        self.lock().groups.contains_key(&key)
    }

    /// The newest state of a group.
    pub(crate) fn snapshot(&self, key: &Key) -> Option<Arc<Snapshot>> {
        Some(Arc::clone(&self.lock().groups.get(key)?.state))
    }

    /// A sender of questions to a group's task.
    pub(crate) fn question_sender(&self, key: &Key) -> Option<QuestionSender> {
        Some(self.lock().groups.get(key)?.questions.clone())
    }

    /// The newest state of a group, with its last restarts.
    pub(crate) fn snapshot_with_history(&self, key: &Key) -> Option<(Arc<Snapshot>, History)> {
        let (state, history) = {
            let inner = self.lock();
            let posted = inner.groups.get(key)?;
            (Arc::clone(&posted.state), Arc::clone(&posted.history))
        };
        let history = history.lock().unwrap_or_else(PoisonError::into_inner).clone();
        Some((state, history))
    }

    /// Up to `most` groups that the filter selects, sorted by namespace and name, and only those
    /// after `after`. Returns true as well if there are more.
    pub(crate) fn list(
        &self,
        filter: &Filter,
        after: Option<Key>,
        most: usize,
    ) -> (Vec<(Key, Arc<Snapshot>)>, bool) {
        let begin = match after {
            Some(after) => Bound::Excluded(after),
            None => Bound::Included(Key {
                namespace: filter.namespace.clone(),
                name: String::new(),
            }),
        };
        let inner = self.lock();
        let mut found = inner
            .groups
            .range((begin, Bound::Unbounded))
            .take_while(|(key, _)| filter.namespace.is_empty() || key.namespace == filter.namespace)
            .filter(|(key, _)| filter.takes(key))
            .map(|(key, posted)| (key.clone(), Arc::clone(&posted.state)));
        let page = found.by_ref().take(most).collect();
        let more = found.next().is_some();
        (page, more)
    }

    /// The first change after number `seen` that the filter selects, with its own number.
    pub(crate) fn next_change(&self, filter: &Filter, seen: u64) -> Option<(u64, Key, Arc<Snapshot>)> {
        let inner = self.lock();
        let (change, key) = inner
            .by_change
            .range((Bound::Excluded(seen), Bound::Unbounded))
            .find(|(_, key)| filter.takes(key))?;
        let posted = inner.groups.get(key)?;
        Some((*change, key.clone(), Arc::clone(&posted.state)))
    }

    /// How many groups have been removed. While this is unchanged, no group is missing.
    pub(crate) fn removal_count(&self) -> u64 {
        self.lock().removals
    }

    /// The first of these keys without a group.
    pub(crate) fn first_missing<'k>(&self, mut keys: impl Iterator<Item = &'k Key>) -> Option<&'k Key> {
        let inner = self.lock();
        keys.find(|key| !inner.groups.contains_key(*key))
    }

    /// A receiver that changes with every change of any group.
    pub(crate) fn subscribe_changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    fn signal(&self, latest: u64) {
        // The latest change wins.
        self.changed.send_if_modified(|newest| {
            let is_newer = *newest < latest;
            *newest = latest.max(*newest);
            is_newer
        });
    }
}

/// The writing side of one group's entry, for its task.
pub struct Post {
    board: Arc<Board>,
    key: Key,
    owner: u64,
    question_sender: QuestionSender,
    questions: mpsc::Receiver<Question>,
    history: Shared,
}

impl Post {
    /// Adds an announcement to the group's history.
    pub fn record(&self, announcement: &Announcement, now: UnixNanos) {
        self.history().note(announcement, now);
    }

    fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next question about this group. Cancel-safe.
    pub async fn next_question(&mut self) -> Question {
        match self.questions.recv().await {
            Some(question) => question,
            // This never happens, because `self` holds a sender.
            None => std::future::pending().await,
        }
    }

    /// Replaces the group's state, unless a newer post has the group by now.
    pub fn replace_state(&self, state: Snapshot) {
        if state.observed.suspended {
            self.history().supersede();
        }
        let state = Arc::new(state);
        let mut inner = self.board.lock();
        // By now, another task may own a JobSet of the same name.
        let before = inner.groups.get(&self.key);
        if before.is_some_and(|posted| posted.owner > self.owner) {
            return;
        }
        inner.latest += 1;
        let change = inner.latest;
        let posted = Posted {
            owner: self.owner,
            questions: self.question_sender.clone(),
            history: Arc::clone(&self.history),
            change,
            state,
        };
        let before = inner.groups.insert(self.key.clone(), posted);
        if let Some(before) = &before {
            inner.by_change.remove(&before.change);
        }
        inner.by_change.insert(change, self.key.clone());
        drop(inner);
        self.board.signal(change);
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        let mut inner = self.board.lock();
        // By now, another task may own a JobSet of the same name.
        if inner
            .groups
            .get(&self.key)
            .is_none_or(|posted| posted.owner != self.owner)
        {
            return;
        }
        if let Some(posted) = inner.groups.remove(&self.key) {
            inner.by_change.remove(&posted.change);
        }
        inner.removals += 1;
        inner.latest += 1;
        let change = inner.latest;
        drop(inner);
        self.board.signal(change);
    }
}
