//! Limits how often something may happen: a burst at once, and then a steady rate (a token bucket,
//! or GCRA, ITU-T I.371). What comes too fast waits; nothing is lost.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A burst, and a rate after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// How many may happen at once.
    pub burst: u32,
    /// The time that each one after the burst waits.
    pub every: Duration,
}

/// A rate limit of one owner.
#[derive(Debug)]
pub struct RateLimit {
    /// When all tokens are back. It is ahead of now by one `every` for each token taken.
    full: Instant,
    rate: Rate,
}

impl RateLimit {
    /// A new limit, with its whole burst.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self {
            full: Instant::now(),
            rate,
        }
    }

    /// When the next one may be taken.
    #[must_use]
    pub fn next(&self) -> Instant {
        let ahead = self.rate.every * self.rate.burst.saturating_sub(1);
        self.full.checked_sub(ahead).unwrap_or_else(Instant::now)
    }

    /// Waits until one may be taken, and takes none. Cancel-safe.
    pub async fn ready(&self) {
        let next = self.next();
        if next > Instant::now() {
            sleep_until(next).await;
        }
    }

    /// Takes one, even if that is too early.
    pub fn take(&mut self) {
        self.take_many(1);
    }

    fn take_many(&mut self, count: u32) {
        self.full = self.full.max(Instant::now()) + self.rate.every * count;
    }

    /// True if the whole burst is available, as for a new limit.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.full <= Instant::now()
    }

    /// Takes one, if one may be taken now.
    pub fn try_take(&mut self) -> bool {
        let is_ready = self.next() <= Instant::now();
        if is_ready {
            self.take();
        }
        is_ready
    }
}

/// A rate limit that several tasks share.
#[derive(Debug)]
pub struct SharedRateLimit(Mutex<RateLimit>);

impl SharedRateLimit {
    /// A new limit, with its whole burst, for all tasks together.
    #[must_use]
    pub fn new(rate: Rate) -> Self {
        Self(Mutex::new(RateLimit::new(rate)))
    }

    fn lock(&self) -> MutexGuard<'_, RateLimit> {
        // Nothing that holds this lock can leave it half-changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one may be taken, and takes none. Cancel-safe.
    pub async fn ready(&self) {
        // Another task may be faster.
        loop {
            let next = self.lock().next();
            if next <= Instant::now() {
                return;
            }
            sleep_until(next).await;
        }
    }

    /// Takes one, even if that is too early.
    pub fn take(&self) {
        self.lock().take();
    }

    /// Takes one, if one may be taken now.
    pub fn try_take(&self) -> bool {
        self.lock().try_take()
    }

    /// Waits until one may be taken, and takes `count` at once. Cancel-safe: if it is cancelled,
    /// none is taken.
    pub async fn acquire(&self, count: u32) {
        loop {
            let next = {
                let mut limit = self.lock();
                let next = limit.next();
                if next <= Instant::now() {
                    return limit.take_many(count);
                }
                next
            };
            sleep_until(next).await;
        }
    }

    /// True if the whole burst is available, as for a new limit.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.lock().is_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_at_once_and_then_one_by_one() {
        let every = Duration::from_millis(100);
        let mut limit = RateLimit::new(Rate { burst: 3, every });
        let begun = Instant::now();
        for _ in 0..3 {
            limit.ready().await;
            limit.take();
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for _ in 0..5 {
            limit.ready().await;
            limit.take();
        }
        assert!(
            (every * 5..every * 6).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
        assert!(!limit.try_take());
        tokio::time::advance(every).await;
        assert!(limit.try_take() && !limit.try_take());
        // Unused tokens are not saved up beyond the burst.
        tokio::time::advance(every * 100).await;
        let rested = Instant::now();
        for _ in 0..4 {
            limit.ready().await;
            limit.take();
        }
        assert!(
            (every..every * 2).contains(&rested.elapsed()),
            "{:?}",
            rested.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_share_a_limit_wait_for_each_other() {
        let every = Duration::from_millis(100);
        let limit = SharedRateLimit::new(Rate { burst: 2, every });
        let begun = Instant::now();
        let turns = (0..5).map(|_| limit.acquire(1));
        futures::future::join_all(turns).await;
        assert!(
            (every * 3..every * 4).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
        assert!(!limit.try_take());
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_rest_is_spaced() {
        let limit = SharedRateLimit::new(Rate {
            burst: 51,
            every: Duration::from_millis(10),
        });
        let began = Instant::now();
        let mut passed = Vec::new();
        for _ in 0..251 {
            limit.ready().await;
            limit.take();
            passed.push(began.elapsed().as_millis());
        }
        assert_eq!(passed[50], 0);
        assert!((1990..2010).contains(&passed[250]), "{}", passed[250]);
        // After a silence the same burst may pass again.
        tokio::time::sleep(Duration::from_secs(10)).await;
        let again = Instant::now();
        for _ in 0..50 {
            limit.ready().await;
            limit.take();
        }
        assert_eq!(again.elapsed(), Duration::ZERO);
    }
}
