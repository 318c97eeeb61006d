//! Follows one kind of object: event in, cache updated, watchers told.

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

use super::cache_entry::CacheEntry;
use super::notify::Notifier;
use super::own_writes::OwnWrites;

#[cfg(test)]
mod tests;

/// The cached objects of one kind, by the JobSet that they belong to.
#[derive(Default)]
struct Index {
    of: HashMap<ObjectRef<JobSet>, Names>,
    /// Changes so far.
    changes: u64,
}

/// Names of the objects of one JobSet.
#[derive(Default)]
struct Names {
    names: HashSet<String>,
    /// The last change of any of the objects.
    changed: u64,
}

impl Index {
    /// The objects of a JobSet, which are about to change.
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
    /// who wait for it.)
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

    /// What the watch shows of one JobSet.
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

    /// Another one with every change of what the watch shows of one JobSet. To be asked for before
    /// that is read: then it is never newer than what was.
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

    /// Updates the cache by one event; returns the JobSets that are concerned. They are to be told
    /// after this.
    fn apply(
        &self,
        writer: &mut Writer<K>,
        event: &Event<K>,
        owner: fn(&K) -> Option<ObjectRef<JobSet>>,
    ) -> Vec<ObjectRef<JobSet>> {
        match event {
            Event::Init | Event::InitApply(_) => {
                writer.apply_watcher_event(event);
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
                // At once: who reads meanwhile finds what is there by its old names, and never that
                // nothing is there.
                let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
                let before = std::mem::take(&mut index.of);
                for (jobset, names) in listed {
                    index.change(jobset).names = names;
                }
                let gone = before.into_keys().filter(|jobset| !index.of.contains_key(jobset));
                let concerned = gone.chain(index.of.keys().cloned()).collect();
                drop(index);
                self.ready.send_replace(true);
                concerned
            }
            Event::Apply(object) => {
                let before = self.store.get(&ObjectRef::from(object));
                writer.apply_watcher_event(event);
                let jobset = owner(object);
                let mut concerned = Vec::new();
                // Somebody may have changed its label.
                if let Some(before) = before.and_then(|before| owner(&before))
                    && jobset.as_ref() != Some(&before)
                {
                    self.remove(&before, &object.named());
                    concerned.push(before);
                }
                if let Some(jobset) = jobset {
                    self.add(jobset.clone(), object.named());
                    self.recent.confirm(&jobset, object);
                    concerned.push(jobset);
                }
                concerned
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

/// How one kind is followed.
pub(super) struct Follow<K: CacheEntry> {
    pub(super) kind: &'static str,
    pub(super) cache: Arc<Cache<K>>,
    pub(super) writer: Writer<K>,
    pub(super) owner: fn(&K) -> Option<ObjectRef<JobSet>>,
    pub(super) told: Vec<Subscriber<K>>,
}

/// Somebody who is told which JobSets are concerned.
pub(super) struct Subscriber<K> {
    pub(super) notifier: Notifier<ObjectRef<JobSet>>,
    /// Which objects are of interest. A complete list always is.
    pub(super) of: fn(&K) -> bool,
}

impl<K> Subscriber<K> {
    /// One who is told of every object.
    pub(super) fn all(notifier: &Notifier<ObjectRef<JobSet>>) -> Self {
        Self {
            notifier: notifier.clone(),
            of: |_| true,
        }
    }
}

impl<K: CacheEntry> Follow<K> {
    /// Follows `events`, which never end and back off by themselves, until `shutdown`.
    pub(super) async fn run(
        self,
        events: impl Stream<Item = Result<Event<K>, watcher::Error>> + Send,
        shutdown: CancellationToken,
    ) {
        self.run_with(events, shutdown, |_| {}).await;
    }

    /// The same; `followed` hears of each event once the cache shows it, and before anybody is
    /// told.
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
                    let concerned = self.cache.apply(&mut self.writer, &event, self.owner);
                    followed(&event);
                    if matches!(event, Event::InitDone) {
                        health.recovered(self.kind, self.cache.store.len());
                    }
                    for told in &self.told {
                        let of_interest = match &event {
                            Event::Apply(object) | Event::Delete(object) => (told.of)(object),
                            Event::Init | Event::InitApply(_) | Event::InitDone => true,
                        };
                        if of_interest {
                            told.notifier.extend(concerned.iter().cloned());
                        }
                    }
                }
                Err(error) => health.failed(self.kind, &error),
            }
        }
    }
}

/// Says once that a watch is in trouble, and how.
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

/// The events of a watch that is tried again when it fails: soon, and ever more slowly only to a
/// point, for what waits for it is behind by as much.
///
/// A version that the API server does not know any more (410) is what follows when it comes back:
/// that is answered by a list, which needs no wait. But only once for each, since a server may
/// refuse what it has just given.
pub(crate) fn patient<K: Send>(
    events: impl Stream<Item = watcher::Result<Event<K>>> + Send,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send {
    let mut listed_anew = false;
    let events = events.filter_map(move |event| {
        let again = match &event {
            Err(watcher::Error::WatchError(status)) if status.code == 410 && !listed_anew => {
                listed_anew = true;
                true
            }
            Ok(Event::Apply(_) | Event::Delete(_)) => {
                listed_anew = false;
                false
            }
            _ => false,
        };
        ready((!again).then_some(event))
    });
    events.backoff(backoff())
}

/// Waits between attempts of a watch that fails: short at first, for a control plane often starts
/// before what it needs.
fn backoff() -> watcher::ExponentialBackoff {
    backon::ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(500))
        .with_max_delay(Duration::from_secs(2))
        .with_jitter()
        .without_max_times()
        .into()
}
