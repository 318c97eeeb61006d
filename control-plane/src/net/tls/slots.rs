//! The slots of all addresses: those who have many give some to those who have few.
//!
//! Promises: no more are taken than there are, but for those that were lost and whose task has not
//! run since. A network with fewer slots than another, by two or more, waits for none. Otherwise
//! one waits for a slot that is given back, or that a network with as many has held for
//! [`UNDISTURBED`]. So who holds few slots keeps them while others hold more. A slot on which an
//! authenticated stream is open ([`InUse`]) is not lost: streams have a bound of their own.

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

/// For how long a slot is held at least, if no network has more slots.
const UNDISTURBED: Duration = Duration::from_secs(5);
/// How often one that waits looks whether a slot was held for that time.
const AGAIN: Duration = Duration::from_secs(1);

/// So many slots.
pub(super) struct ConnectionSlots {
    most: usize,
    holders: Mutex<Holders>,
    freed: Notify,
}

#[derive(Default)]
struct Holders {
    next: u64,
    /// The oldest first.
    by_age: BTreeMap<u64, Holder>,
    by_network: HashMap<IpAddr, usize>,
}

struct Holder {
    network: IpAddr,
    since: Instant,
    lost: Arc<SlotState>,
}

/// What a slot and its holder share: whether it was lost, and the task to wake then.
#[derive(Default)]
struct SlotState {
    is_lost: AtomicBool,
    task: AtomicWaker,
    /// How many streams are open of callers who are known.
    streams: AtomicUsize,
}

/// A stream on a connection that has a slot, until it is dropped. The slot is kept for as long.
pub(super) struct InUse(Arc<SlotState>);

/// A slot, until it is dropped or lost.
pub(super) struct Slot {
    id: u64,
    lost: Arc<SlotState>,
    slots: Arc<ConnectionSlots>,
}

impl ConnectionSlots {
    /// So many, one at least.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            holders: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// A slot for a connection of this network. Cancel-safe.
    pub(super) async fn take(self: &Arc<Self>, network: IpAddr) -> Slot {
        loop {
            let freed = self.freed.notified();
            if let Some(slot) = self.try_take(network) {
                return slot;
            }
            // Nobody says that a slot was held for long.
            let _ = timeout(AGAIN, freed).await;
        }
    }

    fn try_take(self: &Arc<Self>, network: IpAddr) -> Option<Slot> {
        let mut holders = self.lock();
        if holders.by_age.len() >= self.most {
            let loser = holders.loser(network)?;
            if let Some(holder) = holders.remove(loser) {
                holder.lost.is_lost.store(true, Ordering::SeqCst);
                holder.lost.task.wake();
            }
        }
        let id = holders.next;
        holders.next += 1;
        let lost = Arc::new(SlotState::default());
        let holder = Holder {
            network,
            since: Instant::now(),
            lost: Arc::clone(&lost),
        };
        holders.by_age.insert(id, holder);
        *holders.by_network.entry(network).or_default() += 1;
        drop(holders);
        Some(Slot {
            id,
            lost,
            slots: Arc::clone(self),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Holders> {
        // Nothing that holds this lock can leave it half-changed.
        self.holders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Holders {
    /// Which slot is given to this network, if one is.
    fn loser(&self, network: IpAddr) -> Option<u64> {
        let slots_of = |network: &IpAddr| self.by_network.get(network).copied().unwrap_or(0);
        let own = slots_of(&network);
        let idle = || {
            let by_age = self.by_age.iter();
            by_age.filter(|(_, holder)| holder.lost.streams.load(Ordering::SeqCst) == 0)
        };
        let most = idle().map(|(_, holder)| slots_of(&holder.network)).max()?;
        if most >= own.saturating_add(2) {
            let mut of_largest = idle().filter(|(_, holder)| slots_of(&holder.network) == most);
            return of_largest.next().map(|(id, _)| *id);
        }
        let mut of_such = idle().filter(|(_, holder)| slots_of(&holder.network) >= own);
        let (id, oldest) = of_such.next()?;
        (oldest.since.elapsed() >= UNDISTURBED).then_some(*id)
    }

    fn remove(&mut self, id: u64) -> Option<Holder> {
        let holder = self.by_age.remove(&id)?;
        if let Some(slots) = self.by_network.get_mut(&holder.network) {
            *slots -= 1;
            if *slots == 0 {
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

impl Slot {
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

impl Drop for Slot {
    fn drop(&mut self) {
        let removed = self.slots.lock().remove(self.id);
        if removed.is_some() {
            self.slots.freed.notify_one();
        }
    }
}
