//! Limits for large groups, and for answers that nobody reads. A tenant may have a group of 100,000
//! workers, or many smaller ones, and ask for them on a hundred streams that it never reads.
//!
//! Promises:
//! - For each namespace that is asked about, one large group is told at a time, on a thread that
//!   serves nobody else. Then none is told for five times as long.
//! - Answers that are not read yet take at most [`UNREAD`] for each namespace that is asked about,
//!   and [`UNREAD_OF_ALL`] together. If memory is short, all take less, and each namespace a
//!   quarter of that. Callers who ask about all namespaces have room of their own. Messages of up
//!   to [`FREE`] do not count.
//! - A caller that finds no room waits, and is told the newest state then.
//! - One JobSet of each namespace is read whole at a time, to be written.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Lock, PoisonError};
use std::time::Duration;

use http::Response;
use http_body_util::BodyExt as _;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit, Semaphore};
use tokio::task::spawn_blocking;
use tokio::time::{Instant, sleep_until};
use tonic::body::Body;

use super::convert::Detail;
use crate::controllers::restart::board::Snapshot;
use crate::k8s::memory_limit::{self, Share};

#[cfg(test)]
mod tests;

/// Groups of more workers are large: to tell one of so many takes a millisecond.
const LARGE: usize = 1024;
/// Bytes that a worker takes in a message, about.
const WORKER: usize = 256;
/// What a message may have without taking room: there are bounds for calls and watches, too.
const FREE: usize = 64 << 10;
/// A KiB, in which room is counted.
const KIB: usize = 1024;
/// Room for what is not read yet, in KiB, of one namespace and of all. A group of the largest size
/// takes all that a namespace has.
const UNREAD: u32 = UNREAD_OF_ALL / NAMESPACES;
const UNREAD_OF_ALL: u32 = 64 * 1024;
/// As many namespaces with answers that nobody reads take all room.
const NAMESPACES: u32 = 4;
/// The memory for that, if it is less.
const MEMORY: Share = Share { parts: 8, each: KIB };
/// How much longer than a group takes nobody is told another one, and the longest such rest.
const REST: u32 = 5;
const LONGEST_REST: Duration = Duration::from_secs(2);

/// The lines in which callers wait. Cheap to clone.
#[derive(Clone)]
pub(super) struct NamespaceLines {
    of: Arc<Lock<HashMap<String, Arc<NamespaceLine>>>>,
    all: Arc<Semaphore>,
    /// KiB of one namespace.
    of_one: u32,
}

/// Those who ask about one namespace.
pub(super) struct NamespaceLine {
    /// When the next one is told.
    free: Arc<Mutex<Instant>>,
    unread: Arc<Semaphore>,
    all: Arc<Semaphore>,
    /// KiB that nothing takes more than.
    most: u32,
    /// Who writes a JobSet, for which it is read whole.
    writes: Mutex<()>,
}

/// Room for a message that is not read yet.
#[derive(Debug)]
pub(super) struct Unread {
    _line: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Default for NamespaceLines {
    fn default() -> Self {
        Self::with_memory(memory_limit::limit())
    }
}

impl NamespaceLines {
    /// As much room as there is in so much memory.
    fn with_memory(memory: usize) -> Self {
        let kib = u32::try_from(MEMORY.fits(memory)).unwrap_or(u32::MAX);
        let of_one = (kib / NAMESPACES).clamp(1, UNREAD);
        Self {
            of: Arc::default(),
            all: Arc::new(Semaphore::new(NAMESPACES.saturating_mul(of_one) as usize)),
            of_one,
        }
    }

    /// The line of those who ask about this namespace (empty: all).
    pub(super) fn of(&self, namespace: &str) -> Arc<NamespaceLine> {
        let mut lines = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|_, line| Arc::strong_count(line) > 1 || !line.is_free());
        let line = lines.entry(namespace.to_owned()).or_insert_with(|| {
            // Tenants who read nothing do not keep those waiting who look after the cluster.
            let all = if namespace.is_empty() {
                Arc::new(Semaphore::new(self.of_one as usize))
            } else {
                Arc::clone(&self.all)
            };
            Arc::new(NamespaceLine {
                free: Arc::new(Mutex::new(Instant::now())),
                unread: Arc::new(Semaphore::new(self.of_one as usize)),
                all,
                most: self.of_one,
                writes: Mutex::default(),
            })
        });
        Arc::clone(line)
    }
}

impl NamespaceLine {
    /// True if nobody is told anything, nothing is unread, and the line's rest is over.
    fn is_free(&self) -> bool {
        let rested = self.free.try_lock().is_ok_and(|free| *free <= Instant::now());
        rested && self.unread.available_permits() == self.most as usize
    }

    /// Room for what is told of a group, or of several; `None`: it is little, and needs none.
    /// Cancel-safe.
    pub(super) async fn room(&self, size: Size) -> Option<Unread> {
        if !size.needs_room() {
            return None;
        }
        let asked = u32::try_from(size.bytes / KIB + 1)
            .unwrap_or(u32::MAX)
            .min(self.most);
        // Neither is ever closed.
        let line = Arc::clone(&self.unread).acquire_many_owned(asked).await.ok()?;
        let all = Arc::clone(&self.all).acquire_many_owned(asked).await.ok()?;
        Some(Unread {
            _line: line,
            _all: all,
        })
    }

    /// What `tell` says of a group that had this size, in turn if it is large, with its room. It
    /// is `Err` if there is more to tell than there is room for by now, and `None` if there
    /// is no such group any more, or the process ends.
    pub(super) async fn tell<T: Send + 'static>(
        &self,
        mut size: Size,
        tell: impl Fn(Size) -> Option<Result<T, Size>> + Clone + Send + 'static,
    ) -> Option<(T, Option<Unread>)> {
        loop {
            let unread = self.room(size).await;
            let told = if size.is_large {
                let tell = tell.clone();
                self.in_turn(move || tell(size)).await?
            } else {
                tell(size)
            };
            match told? {
                Ok(told) => return Some((told, unread)),
                Err(larger) => size = larger,
            }
        }
    }

    /// A turn to read a JobSet whole, and to write it. Cancel-safe.
    pub(super) async fn write(&self) -> MutexGuard<'_, ()> {
        self.writes.lock().await
    }

    /// Does what a large group takes, in turn; `None`: the process ends. Where nobody waits for it
    /// any more, it still has its turn.
    pub(super) async fn in_turn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        let mut free = Arc::clone(&self.free).lock_owned().await;
        sleep_until(*free).await;
        let work = spawn_blocking(move || {
            let began = Instant::now();
            let done = work();
            let rest = began.elapsed().saturating_mul(REST).min(LONGEST_REST);
            *free = Instant::now() + rest;
            done
        });
        work.await.ok()
    }
}

/// How much there is to tell of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    is_large: bool,
    bytes: usize,
}

impl Size {
    pub(super) fn of(state: &Snapshot, detail: Detail) -> Self {
        Self::of_workers(state.observed.workers.len(), detail)
    }

    /// The size of a group of so many workers.
    pub(super) fn of_workers(workers: usize, detail: Detail) -> Self {
        Self {
            is_large: workers > LARGE,
            bytes: match detail {
                Detail::Full => workers.saturating_mul(WORKER),
                Detail::WithoutWorkers => 0,
            },
        }
    }

    /// More than that of any group that is not large.
    pub(super) fn not_large() -> Self {
        Self {
            is_large: false,
            bytes: usize::MAX,
        }
    }

    /// The size of a page of these groups, which ends with the one that makes it longer than so
    /// many bytes.
    pub(super) fn of_page(groups: impl Iterator<Item = Self>, full: usize) -> Self {
        let all: usize = groups.map(|group| group.bytes.saturating_add(KIB)).sum();
        Self {
            is_large: false,
            bytes: all.min(full.saturating_add(LARGE * WORKER)),
        }
    }

    /// True if room for this one is enough for the other.
    pub(super) fn holds(self, other: Self) -> bool {
        !other.needs_room() || self.bytes >= other.bytes && (self.is_large || !other.is_large)
    }

    fn needs_room(self) -> bool {
        self.is_large || self.bytes > FREE
    }

    pub(super) fn is_large(self) -> bool {
        self.is_large
    }
}

/// What an answer takes until it is read.
#[derive(Clone)]
pub(super) struct HeldRoom(pub(super) Arc<Vec<Unread>>);

/// The answer, which holds its room until it has been read, or nobody wants it any more.
pub(super) fn held(mut answer: Response<Body>) -> Response<Body> {
    let Some(held) = answer.extensions_mut().remove::<HeldRoom>() else {
        return answer;
    };
    answer.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let HeldRoom(_room) = &held;
            frame
        }))
    })
}
