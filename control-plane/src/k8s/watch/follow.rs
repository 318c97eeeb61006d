//! Follows one kind of object: an event comes in, the cache is updated, subscribers are notified.

use std::collections::{HashMap, HashSet};
use std::future::ready;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures::{Stream, StreamExt};
use kube::ResourceExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::store::Writer;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::{self, Event};
use lockstep_api::{JobSet, labels};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cache_entry::{CacheEntry, store};
use super::notify::Notifier;
use super::own_writes::OwnWrites;

#[cfg(test)]
mod tests;

/// The cached objects of one kind, by JobSet.
#[derive(Default)]
struct Index {
    of: HashMap<ObjectRef<JobSet>, Names>,
    /// The number of changes so far.
    changes: u64,
}

/// Names of the objects of one JobSet.
#[derive(Default)]
struct Names {
    names: HashSet<String>,
    /// The number of the last change of any of the objects.
    changed: u64,
}

impl Index {
    /// The names of a JobSet's objects, to be changed.
    fn change(&mut self, jobset: ObjectRef<JobSet>) -> &mut Names {
        self.changes += 1;
        let names = self.of.entry(jobset).or_default();
        names.changed = self.changes;
        names
    }
}

/// The cached objects of one kind.
pub(super) struct Cache<K: CacheEntry> {
    pub(super) store: Store<K>,
    pub(super) recent: OwnWrites<K>,
    index: RwLock<Index>,
    /// True once the first list is complete. (The store's own signal wakes only the last of several
    /// waiters.)
    ready: watch::Sender<bool>,
}

/// The JobSet that an object belongs to, by its label.
pub(super) fn jobset_of<K: ResourceExt>(object: &K) -> Option<ObjectRef<JobSet>> {
    let name = object.labels().get(labels::JOBSET_NAME)?;
    Some(ObjectRef::new(name).within(&object.namespace()?))
}

impl<K: CacheEntry> Cache<K> {
    pub(super) fn new() -> (Arc<Self>, Writer<K>) {
        let writer = Writer::new(());
        let cache = Self {
            store: writer.as_reader(),
            recent: OwnWrites::default(),
            index: RwLock::default(),
            ready: watch::Sender::new(false),
        };
        (Arc::new(cache), writer)
    }

    pub(super) fn is_ready(&self) -> bool {
        *self.ready.borrow()
    }

    /// Waits for the first list to be complete.
    pub(super) async fn wait_until_ready(&self) {
        // The sender lives as long as this does, so waiting cannot fail.
        let _ = self.ready.subscribe().wait_for(|ready| *ready).await;
    }

    /// The objects of a JobSet, as the watch shows them.
    pub(super) fn seen(&self, jobset: &ObjectRef<JobSet>) -> Vec<Arc<K>> {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        let Some(Names { names, .. }) = index.of.get(jobset) else {
            return Vec::new();
        };
        let namespace = jobset.namespace.as_deref().unwrap_or_default();
        names
            .iter()
            .filter_map(|name| self.store.get(&ObjectRef::new(name).within(namespace)))
            .collect()
    }

    /// A number that changes whenever the watch shows a change of one JobSet. Read it before the
    /// objects, so it is never newer than they are.
    pub(super) fn version(&self, jobset: &ObjectRef<JobSet>) -> u64 {
        let index = self.index.read().unwrap_or_else(PoisonError::into_inner);
        index.of.get(jobset).map_or(0, |names| names.changed)
    }

    fn add(&self, jobset: ObjectRef<JobSet>, name: String) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.change(jobset).names.insert(name);
    }

    fn remove(&self, jobset: &ObjectRef<JobSet>, name: &str) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        if !index.of.contains_key(jobset) {
            return;
        }
        let of_jobset = index.change(jobset.clone());
        of_jobset.names.remove(name);
        if of_jobset.names.is_empty() {
            index.of.remove(jobset);
        }
    }

    /// Applies an event to the cache; returns the affected JobSets, which are to be notified after
    /// this.
    fn apply(
        &self,
        writer: &mut Writer<K>,
        event: &Event<K>,
        owner: fn(&K) -> Option<ObjectRef<JobSet>>,
    ) -> Vec<ObjectRef<JobSet>> {
        match event {
            Event::Init | Event::InitApply(_) => {
                store(writer, event, K::is_same);
                Vec::new()
            }
            Event::InitDone => {
                writer.apply_watcher_event(event);
                let mut listed: HashMap<ObjectRef<JobSet>, HashSet<String>> = HashMap::new();
                for object in self.store.state() {
                    if let Some(jobset) = owner(&object) {
                        self.recent.confirm(&jobset, &*object);
                        listed.entry(jobset).or_default().insert(object.named());
                    }
                }
                // Replaced at once: a concurrent reader finds the old names, and never an empty
                // set.
                let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
                let before = std::mem::take(&mut index.of);
                for (jobset, names) in listed {
                    index.change(jobset).names = names;
                }
                let gone = before.into_keys().filter(|jobset| !index.of.contains_key(jobset));
                let affected = gone.chain(index.of.keys().cloned()).collect();
                drop(index);
                self.ready.send_replace(true);
                affected
            }
            Event::Apply(object) => {
                let before = self.store.get(&ObjectRef::from(object));
                writer.apply_watcher_event(event);
                let jobset = owner(object);
                let mut affected = Vec::new();
                // Another client may have changed its label.
                if let Some(before) = before.and_then(|before| owner(&before))
                    && jobset.as_ref() != Some(&before)
                {
                    self.remove(&before, &object.named());
                    affected.push(before);
                }
                if let Some(jobset) = jobset {
                    self.add(jobset.clone(), object.named());
                    self.recent.confirm(&jobset, object);
                    affected.push(jobset);
                }
                affected
            }
            Event::Delete(object) => {
                writer.apply_watcher_event(event);
                let Some(jobset) = owner(object) else {
                    return Vec::new();
                };
                self.remove(&jobset, &object.named());
                self.recent.confirm(&jobset, object);
                vec![jobset]
            }
        }
    }
}

/// How to follow one kind.
pub(super) struct Follow<K: CacheEntry> {
    pub(super) kind: &'static str,
    pub(super) cache: Arc<Cache<K>>,
    pub(super) writer: Writer<K>,
    pub(super) owner: fn(&K) -> Option<ObjectRef<JobSet>>,
    pub(super) subscribers: Vec<Subscriber<K>>,
}

/// A queue for the affected JobSets.
pub(super) struct Subscriber<K> {
    pub(super) notifier: Notifier<ObjectRef<JobSet>>,
    /// True for objects whose changes matter. A complete list always matters.
    pub(super) of: fn(&K) -> bool,
}

impl<K> Subscriber<K> {
    /// A subscriber to every object.
    pub(super) fn all(notifier: &Notifier<ObjectRef<JobSet>>) -> Self {
        Self {
            notifier: notifier.clone(),
            of: |_| true,
        }
    }
}

impl<K: CacheEntry> Follow<K> {
    /// Follows `events`, which never end and back off on their own, until `shutdown`.
    pub(super) async fn run(
        self,
        events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
        shutdown: CancellationToken,
    ) {
        self.run_with(events, shutdown, |_| {}).await;
    }

    /// The same; `followed` is called with each event after the cache shows it and before
    /// subscribers are notified.
    pub(super) async fn run_with(
        mut self,
        events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
        shutdown: CancellationToken,
        mut followed: impl FnMut(&Event<K>) + Send,
    ) {
        let mut events = std::pin::pin!(events.take_until(shutdown.cancelled_owned()));
        let mut health = Health::default();
        while let Some(event) = events.next().await {
            match event {
                Ok(event) => {
                    let affected = self.cache.apply(&mut self.writer, &event, self.owner);
                    followed(&event);
                    if matches!(event, Event::InitDone) {
                        health.recovered(self.kind, self.cache.store.len());
                    }
                    for subscriber in &self.subscribers {
                        let of_interest = match &event {
                            Event::Apply(object) | Event::Delete(object) => (subscriber.of)(object),
                            Event::Init | Event::InitApply(_) | Event::InitDone => true,
                        };
                        if of_interest {
                            subscriber.notifier.extend(affected.iter().cloned());
                        }
                    }
                }
                Err(error) => health.failed(self.kind, &error),
            }
        }
    }
}

/// Logs once that a watch fails, and why.
#[derive(Default)]
pub(crate) struct Health {
    trouble: Option<String>,
    listed: bool,
}

impl Health {
    pub(crate) fn failed(&mut self, kind: &'static str, error: &watcher::Error) {
        let missing = |error: &kube::Error| matches!(error, kube::Error::Api(status) if status.code == 404);
        let trouble = match error {
            watcher::Error::InitialListFailed(source) | watcher::Error::WatchStartFailed(source)
                if missing(source) =>
            {
                "the API server does not serve this kind; is its CustomResourceDefinition installed?"
                    .to_owned()
            }
            error => error.to_string(),
        };
        if self.trouble.as_ref() == Some(&trouble) {
            tracing::debug!(kind, error = trouble, "watch still fails");
        } else {
            tracing::warn!(kind, error = trouble, "watch fails, will retry");
            self.trouble = Some(trouble);
        }
    }

    pub(crate) fn recovered(&mut self, kind: &'static str, objects: usize) {
        if self.trouble.take().is_some() || !self.listed {
            tracing::info!(kind, objects, "watch is up");
            self.listed = true;
        }
    }
}

/// The events of a watch that is retried when it fails, first soon, then less often. The longest
/// wait is short, since every subscriber lags by as much.
///
/// Status 410 means that the API server no longer knows the version, as after its restart. The
/// answer is a new list without delay, but only once in a row: a server may refuse the version that
/// it just returned.
pub(crate) fn patient<K: Send>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send {
    let mut relisted = false;
    let events = events.filter_map(move |event| {
        let again = match &event {
            Err(watcher::Error::WatchError(status)) if status.code == 410 && !relisted => {
                relisted = true;
                true
            }
            Ok(Event::Apply(_) | Event::Delete(_)) => {
                relisted = false;
                false
            }
            _ => false,
        };
        ready((!again).then_some(event))
    });
    events.backoff(backoff())
}

/// The waits between attempts of a failing watch. They start short, since a control plane often
/// starts before what it needs.
fn backoff() -> watcher::ExponentialBackoff {
    backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(Duration::from_secs(2))
        .with_jitter()
        .without_max_times()
        .into()
}
