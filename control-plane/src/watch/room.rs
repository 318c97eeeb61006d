//! How much memory the cached objects of one namespace may take.
//!
//! Without a quota a tenant may create any number of objects, of 1.5 MB each, and caches keep what there is. So each namespace has a share of the
//! memory of this process. What is beyond it is left out: it is as good as absent until there is room again.
//!
//! Promises: no namespace takes more than its share and a quarter of it, nor all together more than there is and a quarter of that, usual ones of kinds that
//! have a usual size apart; what is kept stays while it does not grow, for as long as this process runs; what is left out is seen again when it is changed, or
//! when all are listed again because there is room: a minute later at first, and half an hour later where something is left out again and again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::stream::BoxStream;
use futures::{Stream, StreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::Lookup;
use kube::runtime::watcher::{self, Event};
use tokio::time::{Instant, sleep_until};

use crate::memory;

#[cfg(test)]
mod tests;

/// How long after a list it is asked at the earliest whether there is room for what it has left out, and where that goes on. A list is work for everybody.
const LOOK: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(30 * 60));

/// What a label, an annotation or an owner takes beside its text.
const ENTRY: usize = 96;

/// An object that counts.
pub(crate) trait Weighs: Lookup<DynamicType = ()> + Send + 'static {
    /// Bytes that it takes, about.
    fn bytes(&self) -> usize;

    /// Whether it is kept whatever others take: leaving it out would do more harm.
    fn is_usual(&self) -> bool {
        false
    }
}

/// What all that caches keep of tenants' objects may take. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Rooms {
    /// What tenants write: JobSets, and Ray's resources.
    pub(crate) written: Room,
    /// What is made for these: Jobs, and the Services of Ray's heads.
    pub(crate) made: Room,
    /// JobSets with gangs and their Jobs, in kB.
    pub(crate) gangs: Room,
}

impl Rooms {
    /// For a process that may take so many bytes. A MiB holds some 200 usual JobSets, or 1,000 Jobs.
    pub(crate) fn of(memory: usize) -> Self {
        Self {
            written: Room::new(memory / 32, memory / 4),
            made: Room::new(memory / 32, memory / 4),
            gangs: Room::new(memory / 32 / 1000, memory / 8 / 1000),
        }
    }
}

impl Default for Rooms {
    fn default() -> Self {
        Self::of(memory::limit())
    }
}

/// Room for objects of some kinds, in bytes or what else they are weighed by. Cheap to clone; all clones are one.
#[derive(Clone, Debug)]
pub(crate) struct Room {
    /// For those of one namespace.
    pub(crate) share: usize,
    /// For those of all.
    all: usize,
    taken: Arc<Mutex<Taken>>,
}

#[derive(Debug, Default)]
struct Taken {
    by_namespace: HashMap<String, usize>,
    sum: usize,
}

impl Room {
    pub(crate) fn new(share: usize, all: usize) -> Self {
        Self {
            share,
            all,
            taken: Arc::default(),
        }
    }

    fn locked(&self) -> MutexGuard<'_, Taken> {
        // Nothing under this lock can leave it half changed.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether `bytes` are taken in the place of the `before` of an object that was kept.
    pub(crate) fn takes(&self, namespace: &str, before: Option<usize>, bytes: usize) -> bool {
        let mut taken = self.locked();
        let of_namespace = taken.by_namespace.get(namespace).copied().unwrap_or(0);
        let others = of_namespace.saturating_sub(before.unwrap_or(0));
        let all_others = taken.sum.saturating_sub(before.unwrap_or(0));
        // What is kept is not lost soon because its status grows.
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

    /// Counts what is kept in any case.
    fn put(&self, namespace: &str, before: Option<usize>, bytes: usize) {
        self.release(namespace, before.unwrap_or(0));
        let mut taken = self.locked();
        let of_namespace = taken.by_namespace.get(namespace).copied().unwrap_or(0);
        taken.set(namespace, of_namespace.saturating_add(bytes));
        taken.sum = taken.sum.saturating_add(bytes);
    }

    /// Gives back what an object has taken that is kept no more.
    pub(crate) fn release(&self, namespace: &str, bytes: usize) {
        let mut taken = self.locked();
        let of_namespace = taken.by_namespace.get(namespace).copied().unwrap_or(0);
        taken.set(namespace, of_namespace.saturating_sub(bytes));
        taken.sum = taken.sum.saturating_sub(bytes);
    }

    /// Whether there is room for so many bytes.
    pub(crate) fn has(&self, namespace: &str, bytes: usize) -> bool {
        let taken = self.locked();
        let of_namespace = taken.by_namespace.get(namespace).copied().unwrap_or(0);
        of_namespace.saturating_add(bytes) <= self.share && taken.sum.saturating_add(bytes) <= self.all
    }
}

impl Taken {
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

/// What metadata takes.
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

/// What one watch keeps.
struct Account {
    room: Room,
    /// By namespace and name.
    kept: HashMap<String, HashMap<String, Entry>>,
    /// Namespaces of which something was left out, and how much that takes at least.
    short: HashMap<String, usize>,
    /// Lists so far.
    lists: u64,
    /// Whether one is under way.
    listing: bool,
}

struct Entry {
    bytes: usize,
    /// The last list that it was in.
    list: u64,
}

/// What becomes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Kept,
    /// There is no room for it. True: it was kept before.
    LeftOut(bool),
}

impl Account {
    fn new(room: Room) -> Self {
        Self {
            room,
            kept: HashMap::new(),
            short: HashMap::new(),
            lists: 0,
            listing: true,
        }
    }

    fn admit<K: Weighs>(&mut self, object: &K) -> Fate {
        let (namespace, name) = place(object);
        let known = self.kept.get_mut(&namespace).and_then(|kept| kept.get_mut(&name));
        let before = known.as_ref().map(|entry| entry.bytes);
        let entry = Entry {
            bytes: object.bytes().saturating_add(ENTRY),
            list: self.lists,
        };
        let is_usual = object.is_usual();
        if is_usual {
            self.room.put(&namespace, before, entry.bytes);
        }
        if is_usual || self.room.takes(&namespace, before, entry.bytes) {
            match known {
                Some(known) => *known = entry,
                None => {
                    self.kept.entry(namespace).or_default().insert(name, entry);
                }
            }
            return Fate::Kept;
        }
        self.forget(&namespace, &name);
        let least = self.short.entry(namespace).or_insert(entry.bytes);
        *least = entry.bytes.min(*least);
        Fate::LeftOut(before.is_some())
    }

    fn forget(&mut self, namespace: &str, name: &str) {
        let Some(kept) = self.kept.get_mut(namespace) else {
            return;
        };
        if let Some(entry) = kept.remove(name) {
            self.room.release(namespace, entry.bytes);
        }
        if kept.is_empty() {
            self.kept.remove(namespace);
        }
    }

    fn begin_list(&mut self) {
        self.lists += 1;
        self.listing = true;
        self.short.clear();
    }

    fn end_list(&mut self) {
        self.listing = false;
        let (room, list) = (&self.room, self.lists);
        self.kept.retain(|namespace, kept| {
            kept.retain(|_, entry| {
                let is_there = entry.list == list;
                if !is_there {
                    room.release(namespace, entry.bytes);
                }
                is_there
            });
            !kept.is_empty()
        });
    }

    /// Whether something is left out, and no list is under way that may bring it.
    fn waits(&self) -> bool {
        !self.short.is_empty() && !self.listing
    }

    fn is_room_again(&self) -> bool {
        let mut short = self.short.iter();
        short.any(|(namespace, least)| self.room.has(namespace, *least))
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        for (namespace, kept) in &self.kept {
            for entry in kept.values() {
                self.room.release(namespace, entry.bytes);
            }
        }
    }
}

fn place<K: Weighs>(object: &K) -> (String, String) {
    let namespace = object.namespace().unwrap_or_default().into_owned();
    (namespace, object.name().unwrap_or_default().into_owned())
}

/// The events of the watches that `begin` makes, without the objects for which there is no room; `left_out` is told of each of these. A watch is begun anew
/// where there is room again.
pub(crate) fn within<K, F, L>(
    room: Room,
    begin: F,
    left_out: L,
) -> impl Stream<Item = watcher::Result<Event<K>>> + Send
where
    K: Weighs,
    F: Fn() -> BoxStream<'static, watcher::Result<Event<K>>> + Send + 'static,
    L: FnMut(&K) + Send + 'static,
{
    let watch = Watch {
        events: begin(),
        begin,
        left_out,
        account: Account::new(room),
        look: Instant::now() + LOOK.0,
        wait: LOOK.0,
    };
    stream::unfold(watch, |mut watch| async {
        let event = watch.next().await?;
        Some((event, watch))
    })
}

struct Watch<K, F, L> {
    events: BoxStream<'static, watcher::Result<Event<K>>>,
    begin: F,
    left_out: L,
    account: Account,
    /// When it is asked whether there is room again, and how long after a list that is.
    look: Instant,
    wait: Duration,
}

impl<K, F, L> Watch<K, F, L>
where
    K: Weighs,
    F: Fn() -> BoxStream<'static, watcher::Result<Event<K>>>,
    L: FnMut(&K),
{
    async fn next(&mut self) -> Option<watcher::Result<Event<K>>> {
        loop {
            let event = tokio::select! {
                event = self.events.next() => event?,
                () = sleep_until(self.look), if self.account.waits() => {
                    self.look = Instant::now() + LOOK.0;
                    if self.account.is_room_again() {
                        self.account.listing = true;
                        self.events = (self.begin)();
                    }
                    continue;
                }
            };
            match event {
                Ok(event) => {
                    if let Some(event) = self.sift(event) {
                        return Some(Ok(event));
                    }
                }
                Err(error) => return Some(Err(error)),
            }
        }
    }

    fn sift(&mut self, event: Event<K>) -> Option<Event<K>> {
        match &event {
            Event::Init => self.account.begin_list(),
            Event::InitDone => {
                self.account.end_list();
                let again = !self.account.short.is_empty();
                self.wait = if again {
                    self.wait.saturating_mul(2).min(LOOK.1)
                } else {
                    LOOK.0
                };
                self.look = Instant::now() + self.wait;
            }
            Event::Delete(object) => {
                let (namespace, name) = place(object);
                self.account.forget(&namespace, &name);
            }
            Event::InitApply(object) | Event::Apply(object) => {
                if let Fate::LeftOut(was_kept) = self.account.admit(object) {
                    (self.left_out)(object);
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
