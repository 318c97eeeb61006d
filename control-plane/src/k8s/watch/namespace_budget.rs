//! Limits how much memory the cached objects of one namespace may take.
//!
//! Without a quota a tenant may create any number of objects of 1.5 MB each, and caches keep all of
//! them. So each namespace has a share of this process's memory. Objects beyond the share are left
//! out: they count as absent until there is room again.
//!
//! Promises: no namespace takes more than its share plus a quarter, and all together take no more
//! than the total plus a quarter. Objects of usual size, of kinds that have one, count separately
//! and displace no other namespace's. A kept object stays while it does not grow, as long as this
//! process runs. An object that is left out is seen again when it changes, or with the next list.
//! There is a new list when there is room, or when too many objects were left out to know their
//! names: a minute later at first, and up to half an hour later if a namespace keeps exceeding its
//! share.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::Lookup;
use kube::runtime::watcher::{self, Event};
use lockstep_core::jobset::limits::{MOST_JOBS, MOST_WORKERS};
use tokio::time::{Instant, sleep_until};

use crate::k8s::memory_limit;
use account::{Account, Fate, key_of};

mod account;

#[cfg(test)]
mod tests;

/// The shortest time between a list and the next check for room, at first and at most. A list is
/// work for the API server and for this process.
const LOOK: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(30 * 60));

/// The overhead of a label, an annotation or an owner beyond its text.
pub(super) const ENTRY: usize = 96;

/// The bytes of a cached Job of a JobSet without unusually long names. One JobSet with the maximum
/// number of Jobs fits into any process.
pub(super) const USUAL_JOB: usize = 1700;

/// The bytes of a cached pod without unusually long names. The pods of one JobSet with the maximum
/// number of workers fit into any process.
pub(super) const USUAL_POD: usize = 1300;

/// An object that counts towards a budget.
pub(crate) trait Weighs: Lookup<DynamicType = ()> + Send + 'static {
    /// Its approximate size in bytes.
    fn bytes(&self) -> usize;

    /// True if it has a usual size and so counts in a separate budget.
    fn is_usual(&self) -> bool {
        false
    }
}

/// The budgets for tenants' objects in caches. Cheap to clone.
#[derive(Clone)]
pub(crate) struct NamespaceBudgets {
    /// Objects that tenants write: JobSets and Ray's resources.
    pub(crate) written: Budget,
    /// Objects that are created for these and are of unusual size: Jobs, and the Services of Ray's
    /// heads.
    pub(crate) made: Budget,
    /// Jobs of usual size. One namespace's do not displace another's.
    pub(crate) usual: Budget,
    /// The pods of JobSets. One namespace's do not displace another's.
    pub(crate) pods: Budget,
    /// JobSets with gangs and their Jobs, in kB.
    pub(crate) gangs: Budget,
}

impl NamespaceBudgets {
    /// Budgets for a process that may take `memory` bytes. A MiB holds about 200 usual JobSets, or
    /// 800 Jobs.
    pub(crate) fn of(memory: usize) -> Self {
        Self {
            written: Budget::new(memory / 32, memory / 4),
            made: Budget::new(memory / 32, memory / 4),
            usual: Budget::new((memory / 16).max(MOST_JOBS * USUAL_JOB), usize::MAX),
            pods: Budget::new((memory / 16).max(MOST_WORKERS * USUAL_POD), usize::MAX),
            gangs: Budget::new(memory / 32 / 1000, memory / 8 / 1000),
        }
    }

    /// The budgets for objects that are created for JobSets, of any size and of usual size.
    pub(crate) fn of_made(&self) -> (Budget, Budget) {
        (self.made.clone(), self.usual.clone())
    }

    /// The budget for pods, twice: it is one for all sizes.
    pub(crate) fn of_pods(&self) -> (Budget, Budget) {
        (self.pods.clone(), self.pods.clone())
    }
}

impl Default for NamespaceBudgets {
    fn default() -> Self {
        Self::of(memory_limit::limit())
    }
}

/// The memory for objects of some kinds, in bytes or another unit. Cheap to clone; clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    /// The limit for one namespace.
    pub(crate) share: usize,
    /// The limit for all namespaces together.
    all: usize,
    taken: Arc<Mutex<Usage>>,
}

#[derive(Debug, Default)]
struct Usage {
    by_namespace: HashMap<String, usize>,
    sum: usize,
}

impl Budget {
    pub(crate) fn new(share: usize, all: usize) -> Self {
        Self {
            share,
            all,
            taken: Arc::default(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Usage> {
        // Nothing under this lock can leave it half changed.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the `before` bytes that the object took by `bytes` if they fit. True if they did.
    pub(crate) fn takes(&self, namespace: &str, before: Option<usize>, bytes: usize) -> bool {
        let mut taken = self.locked();
        let of_namespace = taken.by_namespace.get(namespace).copied().unwrap_or(0);
        let others = of_namespace.saturating_sub(before.unwrap_or(0));
        let all_others = taken.sum.saturating_sub(before.unwrap_or(0));
        // A kept object may grow, for example by its status.
        let slack = if before.is_some() { 4 } else { 0 };
        let more = |most: usize| most.saturating_add(most.checked_div(slack).unwrap_or(0));
        let fits = others.saturating_add(bytes) <= more(self.share)
            && all_others.saturating_add(bytes) <= more(self.all);
        let fits = fits || before.is_some_and(|before| bytes <= before);
        if fits {
            taken.set(namespace, others.saturating_add(bytes));
            taken.sum = all_others.saturating_add(bytes);
        }
        fits
    }

    /// Releases the bytes of an object that is no longer kept.
    pub(crate) fn release(&self, namespace: &str, bytes: usize) {
        let mut taken = self.locked();
        let of_namespace = taken.by_namespace.get(namespace).copied().unwrap_or(0);
        taken.set(namespace, of_namespace.saturating_sub(bytes));
        taken.sum = taken.sum.saturating_sub(bytes);
    }

    /// True if there is room for this many bytes.
    pub(crate) fn has(&self, namespace: &str, bytes: usize) -> bool {
        let taken = self.locked();
        let of_namespace = taken.by_namespace.get(namespace).copied().unwrap_or(0);
        of_namespace.saturating_add(bytes) <= self.share && taken.sum.saturating_add(bytes) <= self.all
    }
}

impl Usage {
    fn set(&mut self, namespace: &str, bytes: usize) {
        if bytes == 0 {
            self.by_namespace.remove(namespace);
        } else if let Some(taken) = self.by_namespace.get_mut(namespace) {
            *taken = bytes;
        } else {
            self.by_namespace.insert(namespace.to_owned(), bytes);
        }
    }
}

/// The bytes that metadata takes.
pub(crate) fn bytes_of(meta: &ObjectMeta) -> usize {
    let map = |map: &Option<std::collections::BTreeMap<String, String>>| {
        let entries = map.iter().flatten();
        entries
            .map(|(key, value)| key.len().saturating_add(value.len()).saturating_add(ENTRY))
            .fold(0, usize::saturating_add)
    };
    let finalizers = meta.finalizers.iter().flatten();
    let finalizers = finalizers.map(|name| name.len().saturating_add(ENTRY));
    let owners = meta.owner_references.iter().flatten();
    let owners = owners.map(|owner| {
        let texts = [&owner.api_version, &owner.kind, &owner.name, &owner.uid];
        texts.into_iter().map(String::len).sum::<usize>() + 2 * ENTRY
    });
    [map(&meta.labels), map(&meta.annotations), size_of::<ObjectMeta>()]
        .into_iter()
        .chain(finalizers)
        .chain(owners)
        .fold(0, usize::saturating_add)
}

/// The events of the watches that `begin` creates, without the objects that do not fit. Before an
/// event is passed on, `tell` is called with its object and whether it is left out (false if it is
/// kept or gone). When there is room again, a new watch begins.
pub(crate) fn within<K, F, L>(
    (budget, usual): (Budget, Budget),
    begin: F,
    tell: L,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Weighs,
    F: Fn() -> BoxStream<'static, watcher::Result<Event<K>>> + Send + 'static,
    L: FnMut(&K, bool) + Send + 'static,
{
    let watch = Watch {
        events: begin(),
        begin,
        tell,
        account: Account::new(budget, usual),
        look: Instant::now() + LOOK.0,
    };
    stream::unfold(watch, |mut watch| async {
        let event = watch.next().await?;
        Some((event, watch))
    })
}

struct Watch<K, F, L> {
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    begin: F,
    tell: L,
    account: Account,
    /// The time of the next check for room.
    look: Instant,
}

impl<K, F, L> Watch<K, F, L>
where
    K: Weighs,
    F: Fn() -> BoxStream<'static, watcher::Result<Event<K>>>,
    L: FnMut(&K, bool),
{
    async fn next(&mut self) -> Option<watcher::Result<Event<K>>> {
        loop {
            let event = tokio::select! {
                event = self.events.next() => event?,
                () = sleep_until(self.look), if self.account.waits() => {
                    self.look = Instant::now() + LOOK.0;
                    if self.account.needs_list() {
                        self.account.listing = true;
                        self.events = (self.begin)();
                    }
                    continue;
                }
            };
            match event {
                Ok(event) => {
                    if let Some(event) = self.filter(event) {
                        return Some(Ok(event));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn filter(&mut self, event: Event<K>) -> Option<Event<K>> {
        match &event {
            Event::Init => self.account.begin_list(),
            Event::InitDone => {
                self.account.end_list();
                self.look = Instant::now() + LOOK.0;
            }
            Event::Delete(object) => {
                let (namespace, name) = key_of(object);
                self.account.forget(&namespace, &name);
                (self.tell)(object, false);
            }
            Event::InitApply(object) | Event::Apply(object) => {
                let fate = self.account.admit(object);
                (self.tell)(object, fate != Fate::Kept);
                if let Fate::LeftOut { was_kept } = fate {
                    return match event {
                        Event::Apply(object) if was_kept => Some(Event::Delete(object)),
                        _ => None,
                    };
                }
            }
        }
        Some(event)
    }
}
