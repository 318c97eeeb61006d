//! Spaces what comes too fast: messages of nodes, and requests to the API server.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Spaces what comes too fast, and loses nothing: so many per second in the long run, and a burst
/// of some (GCRA, ITU-T I.371).
pub(crate) struct Pace {
    every: Duration,
    burst: Duration,
    /// When the next one would come if all came evenly.
    even: Mutex<Instant>,
}

impl Pace {
    /// One each `every`, and `burst` more at once.
    pub(crate) fn new(every: Duration, burst: u32) -> Self {
        Self {
            every,
            burst: every * burst,
            even: Mutex::new(Instant::now()),
        }
    }

    /// Resolves once the next one may come. Cancel-safe.
    pub(crate) async fn ready(&self) {
        // Nearly always it may come at once: then no timer is made. Another stream may be faster.
        loop {
            let Some(at) = self.later(*self.even()) else {
                return;
            };
            sleep_until(at).await;
        }
    }

    /// One has come.
    pub(crate) fn took(&self) {
        self.count(&mut self.even(), 1);
    }

    /// Resolves once something may come that counts for so many, and counts it. Cancel-safe.
    pub(crate) async fn take(&self, many: u32) {
        loop {
            let at = {
                let mut even = self.even();
                let Some(at) = self.later(*even) else {
                    return self.count(&mut even, many);
                };
                at
            };
            sleep_until(at).await;
        }
    }

    /// When the next one may come, if that is not now.
    fn later(&self, even: Instant) -> Option<Instant> {
        even.checked_sub(self.burst).filter(|at| *at > Instant::now())
    }

    fn count(&self, even: &mut Instant, many: u32) {
        *even = (*even).max(Instant::now()) + self.every * many;
    }

    /// True if it is as if nothing had come yet.
    pub(crate) fn is_fresh(&self) -> bool {
        *self.even() <= Instant::now()
    }

    fn even(&self) -> MutexGuard<'_, Instant> {
        // Nothing that holds this lock can leave it half-changed.
        self.even.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_rest_is_spaced() {
        let pace = Pace::new(Duration::from_millis(10), 50);
        let began = Instant::now();
        let mut passed = Vec::new();
        for _ in 0..251 {
            pace.ready().await;
            pace.took();
            passed.push(began.elapsed().as_millis());
        }
        assert_eq!(passed[50], 0);
        assert!((1990..2010).contains(&passed[250]), "{}", passed[250]);
        // Who was silent may say as much again.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let again = Instant::now();
        for _ in 0..50 {
            pace.ready().await;
            pace.took();
        }
        assert_eq!(again.elapsed(), Duration::ZERO);
    }
}
