//! The places of all addresses: those who have many give some to those who have few.
//!
//! Promises: no more are taken than there are, but for those that were lost and whose task has not run since. A network with fewer places than another, by two or
//! more, waits for none. Otherwise one waits for a place that is given back, or that a network with as many has held for [`UNDISTURBED`]. So who holds few
//! places keeps them while others hold more. A place on which an authenticated stream is open ([`InUse`]) is not lost: streams have a bound of their own.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::task::AtomicWaker;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

#[cfg(test)]
mod tests;

/// For how long a place is held at least, if no network has more places.
const UNDISTURBED: Duration = Duration::from_secs(5);
/// How often one that waits looks whether a place was held for so long.
const AGAIN: Duration = Duration::from_secs(1);

/// So many places.
pub(super) struct Places {
    most: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    next: u64,
    /// The oldest first.
    by_age: BTreeMap<u64, Holder>,
    by_network: HashMap<IpAddr, usize>,
}

struct Holder {
    network: IpAddr,
    since: Instant,
    lost: Arc<Lost>,
}

/// What a place and its holder share: whether it was lost, and the task to wake then.
#[derive(Default)]
struct Lost {
    is_lost: AtomicBool,
    task: AtomicWaker,
    /// How many streams are open of callers who are known.
    streams: AtomicUsize,
}

/// A stream on a connection that has a place, until it is dropped. The place is kept for as long.
pub(super) struct InUse(Arc<Lost>);

/// A place, until it is dropped or lost.
pub(super) struct Place {
    id: u64,
    lost: Arc<Lost>,
    places: Arc<Places>,
}

impl Places {
    /// So many, one at least.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            taken: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A place for a connection of this network. Cancel-safe.
    pub(super) async fn take(self: &Arc<Self>, network: IpAddr) -> Place {
        loop {
            let freed = self.freed.notified();
            if let Some(place) = self.try_take(network) {
                return place;
            }
            // Nobody says that a place was held for long.
            let _ = timeout(AGAIN, freed).await;
        }
    }

    fn try_take(self: &Arc<Self>, network: IpAddr) -> Option<Place> {
        let mut taken = self.lock();
        if taken.by_age.len() >= self.most {
            let loser = taken.loser(network)?;
            if let Some(holder) = taken.remove(loser) {
                holder.lost.is_lost.store(true, Ordering::SeqCst);
                holder.lost.task.wake();
            }
        }
        let id = taken.next;
        taken.next += 1;
        let lost = Arc::new(Lost::default());
        let holder = Holder {
            network,
            since: Instant::now(),
            lost: Arc::clone(&lost),
        };
        taken.by_age.insert(id, holder);
        *taken.by_network.entry(network).or_default() += 1;
        drop(taken);
        Some(Place {
            id,
            lost,
            places: Arc::clone(self),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        // Nothing that holds this lock can leave it half-changed.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    /// Which place is given to this network, if one is.
    fn loser(&self, network: IpAddr) -> Option<u64> {
        let places_of = |network: &IpAddr| self.by_network.get(network).copied().unwrap_or(0);
        let own = places_of(&network);
        let idle = || {
            let by_age = self.by_age.iter();
            by_age.filter(|(_, holder)| holder.lost.streams.load(Ordering::SeqCst) == 0)
        };
        let most = idle().map(|(_, holder)| places_of(&holder.network)).max()?;
        if most >= own.saturating_add(2) {
            let mut of_largest = idle().filter(|(_, holder)| places_of(&holder.network) == most);
            return of_largest.next().map(|(id, _)| *id);
        }
        let mut of_such = idle().filter(|(_, holder)| places_of(&holder.network) >= own);
        let (id, oldest) = of_such.next()?;
        (oldest.since.elapsed() >= UNDISTURBED).then_some(*id)
    }

    fn remove(&mut self, id: u64) -> Option<Holder> {
        let holder = self.by_age.remove(&id)?;
        if let Some(places) = self.by_network.get_mut(&holder.network) {
            *places -= 1;
            if *places == 0 {
                self.by_network.remove(&holder.network);
            }
        }
        Some(holder)
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        self.0.streams.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Place {
    /// A stream is opened on the connection.
    pub(super) fn in_use(&self) -> InUse {
        self.lost.streams.fetch_add(1, Ordering::SeqCst);
        InUse(Arc::clone(&self.lost))
    }

    /// Ready once it is lost. Wakes the task of the latest poll then.
    pub(super) fn poll_lost(&self, cx: &Context<'_>) -> Poll<()> {
        self.lost.task.register(cx.waker());
        match self.lost.is_lost.load(Ordering::SeqCst) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let removed = self.places.lock().remove(self.id);
        if removed.is_some() {
            self.places.freed.notify_one();
        }
    }
}
