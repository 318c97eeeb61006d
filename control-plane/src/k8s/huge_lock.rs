//! A process-wide lock around parsing huge objects.
//!
//! A 1.5 MB object takes 12 to 50 MB once it is parsed. Webhooks, the JobSet reconciler and Ray's
//! controllers parse such objects concurrently. Each of them stays within the memory limit; all of
//! them together would exceed it.
//!
//! Promises: the lock is fair. Its holder never writes an object to the API server: that write
//! would call our own webhook, which waits for the lock. Controllers do not ask the API server
//! anything while they hold it.

use lockstep_core::common::extent::Extent;
use tokio::sync::{Semaphore, SemaphorePermit};

/// The threshold for a huge object. The largest objects take 12 MB, and what is made of one takes
/// as much again.
pub(crate) const FROM: Extent = Extent {
    objects: 2_048,
    elements: 16_384,
};

/// The same threshold for a JobSet, in bytes of usual text.
pub(crate) const FROM_BYTES: usize = 1 << 20;

/// What the lock is made of.
#[cfg(not(test))]
fn semaphore() -> &'static Semaphore {
    static ALL: Semaphore = Semaphore::const_new(1);
    &ALL
}

/// Each test has a thread and a lock of its own. Otherwise a test whose clock is paused would wait
/// for the work of another test while its own time passes.
#[cfg(test)]
fn semaphore() -> &'static Semaphore {
    thread_local! {
        static OF_THREAD: &'static Semaphore = Box::leak(Box::new(Semaphore::new(1)));
    }
    OF_THREAD.with(|semaphore| *semaphore)
}

/// The guard. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Huge {
    _only: Option<SemaphorePermit<'static>>,
}

/// Acquires the lock. Cancel-safe; a cancelled caller loses its place in the queue.
pub(crate) async fn turn() -> Huge {
    // The semaphore is never closed.
    Huge {
        _only: semaphore().acquire().await.ok(),
    }
}

/// Acquires the lock only if `is_huge`.
pub(crate) async fn turn_if(is_huge: bool) -> Option<Huge> {
    match is_huge {
        true => Some(turn().await),
        false => None,
    }
}
