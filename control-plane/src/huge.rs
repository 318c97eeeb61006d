//! A process-wide lock around parsing huge objects.
//!
//! A 1.5 MB object takes 12 to 50 MB once it is parsed. Webhooks, the JobSet reconciler and Ray's controllers parse such objects concurrently. Each stays within
//! the memory limit alone; all of them together would exceed it.
//!
//! Promises: the lock is fair. Its holder never writes an object to the API server: that write would call our own webhook, which waits for the lock.

use tokio::sync::{Semaphore, SemaphorePermit};

static ALL: Semaphore = Semaphore::const_new(1);

/// The guard. Dropping it releases the lock.
#[derive(Debug)]
pub(crate) struct Huge {
    _only: Option<SemaphorePermit<'static>>,
}

/// Acquires the lock. Cancel-safe; a cancelled caller loses its place in the queue.
pub(crate) async fn turn() -> Huge {
    // The semaphore is never closed.
    Huge {
        _only: ALL.acquire().await.ok(),
    }
}
