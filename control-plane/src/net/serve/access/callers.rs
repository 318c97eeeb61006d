//! Limits how many requests of one address may wait for the API server's reviews.
//!
//! Promises: an address has a limited number of running reviews, fewer than the overall limit, and
//! a limited number of waiting ones. Other addresses do not wait for them. The state of an address
//! is dropped with its last review.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Concurrent reviews of one address.
pub(super) const AT_ONCE: usize = 2;
/// Waiting reviews of one address.
pub(super) const WAITING: usize = 64;

/// The addresses with reviews.
#[derive(Default)]
pub(super) struct Callers(Mutex<HashMap<String, Caller>>);

struct Caller {
    questions: usize,
    places: Arc<Semaphore>,
}

/// A review for an address that waits or runs.
pub(super) struct Question<'a> {
    callers: &'a Callers,
    from: &'a str,
    places: Arc<Semaphore>,
}

impl Callers {
    /// Adds a review for this address; `None` if it has too many.
    pub(super) fn question<'a>(&'a self, from: &'a str) -> Option<Question<'a>> {
        let mut callers = self.locked();
        let caller = callers.entry(from.to_owned()).or_insert_with(|| Caller {
            questions: 0,
            places: Arc::new(Semaphore::new(AT_ONCE)),
        });
        if caller.questions >= AT_ONCE + WAITING {
            return None;
        }
        caller.questions += 1;
        Some(Question {
            callers: self,
            from,
            places: Arc::clone(&caller.places),
        })
    }

    fn locked(&self) -> MutexGuard<'_, HashMap<String, Caller>> {
        // Nothing that holds this lock can leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[cfg(test)]
    pub(super) fn known(&self) -> usize {
        self.locked().len()
    }
}

impl Question<'_> {
    /// Waits until the review may run. Cancel-safe.
    pub(super) async fn turn(&self) -> Option<OwnedSemaphorePermit> {
        // The semaphore is never closed, so a permit always comes.
        Arc::clone(&self.places).acquire_owned().await.ok()
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        let mut callers = self.callers.locked();
        if let Some(caller) = callers.get_mut(self.from) {
            caller.questions -= 1;
            if caller.questions == 0 {
                callers.remove(self.from);
            }
        }
    }
}
