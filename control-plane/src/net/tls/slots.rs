//! The overall slots of unauthenticated connections: addresses with many give some to addresses
//! with few.
//!
//! Promises: no more slots are taken than exist, except lost ones whose task has not run since. A
//! network never waits if another one has at least two slots more. Otherwise it waits for a slot
//! that is returned, or that a network with as many slots has held for [`UNDISTURBED`]. So a
//! network with few slots keeps them while others have more. A slot with an open authenticated
//! stream ([`InUse`]) is not lost: streams have their own limit.

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

/// How long a slot is safe if no network has more slots.
const UNDISTURBED: Duration = Duration::from_secs(5);
/// How often a waiting connection checks for a slot that was held this long.
const AGAIN: Duration = Duration::from_secs(1);

/// A fixed number of slots.
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

/// The state that a slot and its holder share.
#[derive(Default)]
struct SlotState {
    is_lost: AtomicBool,
    task: AtomicWaker,
    /// How many authenticated streams are open.
    streams: AtomicUsize,
}

/// An open stream that protects its connection's slot until it is dropped.
pub(super) struct InUse(Arc<SlotState>);

/// A slot; held until it is dropped or lost.
pub(super) struct Slot {
    id: u64,
    lost: Arc<SlotState>,
    slots: Arc<ConnectionSlots>,
}

impl ConnectionSlots {
    /// Creates `most` slots, at least one.
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self {
            most: most.max(1),
            holders: Mutex::default(),
            freed: Notify::new(),
        })
    }

    /// Waits for a slot for a connection of this network. Cancel-safe.
    pub(super) async fn take(self: &Arc<Self>, network: IpAddr) -> Slot {
        loop {
            let freed = self.freed.notified();
            if let Some(slot) = self.try_take(network) {
                return slot;
            }
            // No signal tells that a slot was held long enough.
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
    /// The slot to take away for this network, if any.
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
    /// Records a stream on the connection.
    pub(super) fn in_use(&self) -> InUse {
        self.lost.streams.fetch_add(1, Ordering::SeqCst);
        InUse(Arc::clone(&self.lost))
    }

    /// Ready once the slot is lost. Wakes the task of the latest poll.
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
