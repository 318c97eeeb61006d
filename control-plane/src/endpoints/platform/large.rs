//! Limits for large groups and for unread answers. A tenant may have a group of 100,000 workers, or
//! many smaller ones, and request them on a hundred streams that it never reads.
//!
//! Promises:
//! - In each requested namespace, one large group is converted at a time, on a thread of its own.
//!   Then none is converted for five times as long.
//! - Unread answers take at most [`UNREAD`] for each requested namespace, and [`UNREAD_OF_ALL`]
//!   together. With less memory all take less, and each namespace a quarter of that. Requests about
//!   all namespaces have room of their own. Messages of up to [`FREE`] do not count.
//! - A caller that finds no room waits, and then gets the newest state.
//! - In each namespace, one JobSet at a time is read whole in order to write it.

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

/// Groups with more workers are large. To convert one of this size takes a millisecond.
const LARGE: usize = 1024;
/// Approximate bytes of a worker in a message.
const WORKER: usize = 256;
/// Bytes that a message may have without taking room, since calls and watches are limited as well.
const FREE: usize = 64 << 10;
/// The unit of room: a KiB.
const KIB: usize = 1024;
/// Room for unread answers, in KiB, of one namespace and of all. A group of the largest size takes
/// all of a namespace's room.
const UNREAD: u32 = UNREAD_OF_ALL / NAMESPACES;
const UNREAD_OF_ALL: u32 = 64 * 1024;
/// How many namespaces with unread answers can fill all room.
const NAMESPACES: u32 = 4;
/// The share of memory for that room, if it is less.
const MEMORY: Share = Share { parts: 8, each: KIB };
/// The pause after a conversion, as a multiple of its time, and the longest pause.
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

/// The callers that ask about one namespace.
pub(super) struct NamespaceLine {
    /// When the next large group may be converted.
    free: Arc<Mutex<Instant>>,
    unread: Arc<Semaphore>,
    all: Arc<Semaphore>,
    /// Most KiB that one answer takes.
    most: u32,
    /// Held while a JobSet is read whole and written.
    writes: Mutex<()>,
}

/// Room for an unread message.
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
    /// As much room as this much memory allows.
    fn with_memory(memory: usize) -> Self {
        let kib = u32::try_from(MEMORY.fits(memory)).unwrap_or(u32::MAX);
        let of_one = (kib / NAMESPACES).clamp(1, UNREAD);
        Self {
            of: Arc::default(),
            all: Arc::new(Semaphore::new(NAMESPACES.saturating_mul(of_one) as usize)),
            of_one,
        }
    }

    /// The line of callers that ask about this namespace (empty: all).
    pub(super) fn of(&self, namespace: &str) -> Arc<NamespaceLine> {
        let mut lines = self.of.lock().unwrap_or_else(PoisonError::into_inner);
        lines.retain(|_, line| Arc::strong_count(line) > 1 || !line.is_free());
        let line = lines.entry(namespace.to_owned()).or_insert_with(|| {
            // Tenants that read nothing cannot block those who look after the cluster.
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
    /// True if nothing is being converted, nothing is unread, and the pause is over.
    fn is_free(&self) -> bool {
        let rested = self.free.try_lock().is_ok_and(|free| *free <= Instant::now());
        rested && self.unread.available_permits() == self.most as usize
    }

    /// Room for an answer of this size; `None` if it is small and needs none. Cancel-safe.
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

    /// Converts a group that had this size, in turn if it is large. Returns the result with its
    /// room. `convert` returns its new size as an error if it has outgrown the room. `None` if the
    /// group is gone, or the process ends.
    pub(super) async fn convert<T: Send + 'static>(
        &self,
        mut size: Size,
        convert: impl Fn(Size) -> Option<Result<T, Size>> + Clone + Send + 'static,
    ) -> Option<(T, Option<Unread>)> {
        loop {
            let unread = self.room(size).await;
            let converted = if size.is_large {
                let convert = convert.clone();
                self.in_turn(move || convert(size)).await?
            } else {
                convert(size)
            };
            match converted? {
                Ok(converted) => return Some((converted, unread)),
                Err(larger) => size = larger,
            }
        }
    }

    /// A turn to read a JobSet whole and to write it. Cancel-safe.
    pub(super) async fn write(&self) -> MutexGuard<'_, ()> {
        self.writes.lock().await
    }

    /// Does the work for a large group, in turn; `None` if the process ends. Once begun, the work
    /// keeps its turn even if the caller has gone.
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

/// The size of a group in an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Size {
    is_large: bool,
    bytes: usize,
}

impl Size {
    pub(super) fn of(state: &Snapshot, detail: Detail) -> Self {
        Self::of_workers(state.observed.workers.len(), detail)
    }

    /// The size of a group with this many workers.
    pub(super) fn of_workers(workers: usize, detail: Detail) -> Self {
        Self {
            is_large: workers > LARGE,
            bytes: match detail {
                Detail::Full => workers.saturating_mul(WORKER),
                Detail::WithoutWorkers => 0,
            },
        }
    }

    /// More than the size of any group that is not large.
    pub(super) fn not_large() -> Self {
        Self {
            is_large: false,
            bytes: usize::MAX,
        }
    }

    /// The size of a page of these groups. The page ends with the group that takes it beyond `full`
    /// bytes.
    pub(super) fn of_page(groups: impl Iterator<Item = Self>, full: usize) -> Self {
        let all: usize = groups.map(|group| group.bytes.saturating_add(KIB)).sum();
        Self {
            is_large: false,
            bytes: all.min(full.saturating_add(LARGE * WORKER)),
        }
    }

    /// True if room for this size is enough for the other.
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

/// The room that an answer holds until it is read.
#[derive(Clone)]
pub(super) struct HeldRoom(pub(super) Arc<Vec<Unread>>);

/// Makes the answer hold its room until it has been read or dropped.
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
