//! How often something may happen: a number of times at once, and then once in so long.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A token bucket.
#[derive(Debug)]
pub(crate) struct Pace {
    /// When it would be full again. Ahead of now by one `every` for each that was taken.
    full: Instant,
    burst: u32,
    every: Duration,
}

impl Pace {
    /// `burst` at once, and one more each `every`.
    pub(crate) fn new(burst: u32, every: Duration) -> Self {
        Self {
            full: Instant::now(),
            burst,
            every,
        }
    }

    /// When the next one may be taken.
    pub(crate) fn next(&self) -> Instant {
        let ahead = self.every * self.burst.saturating_sub(1);
        self.full.checked_sub(ahead).unwrap_or(self.full)
    }

    /// Waits until one may be taken. Takes none, so it may be given up.
    pub(crate) async fn ready(&self) {
        let next = self.next();
        if next > Instant::now() {
            sleep_until(next).await;
        }
    }

    /// Takes one.
    pub(crate) fn take(&mut self) {
        self.full = self.full.max(Instant::now()) + self.every;
    }

    /// Whether as many as ever may be taken at once.
    pub(crate) fn is_rested(&self) -> bool {
        self.full <= Instant::now()
    }

    /// Takes one, if one may be taken now.
    pub(crate) fn try_take(&mut self) -> bool {
        let is_ready = self.next() <= Instant::now();
        if is_ready {
            self.take();
        }
        is_ready
    }
}

/// The same for many who share it.
#[derive(Debug)]
pub(crate) struct SharedPace(Mutex<Pace>);

impl SharedPace {
    /// `burst` at once, and one more each `every`, for all together.
    pub(crate) fn new(burst: u32, every: Duration) -> Self {
        Self(Mutex::new(Pace::new(burst, every)))
    }

    fn lock(&self) -> MutexGuard<'_, Pace> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until one may be taken. Takes none, so it may be given up.
    pub(crate) async fn ready(&self) {
        loop {
            let next = self.lock().next();
            if next <= Instant::now() {
                return;
            }
            sleep_until(next).await;
        }
    }

    /// Takes one.
    pub(crate) fn take(&self) {
        self.lock().take();
    }

    /// Takes one, if one may be taken now.
    pub(crate) fn try_take(&self) -> bool {
        self.lock().try_take()
    }

    /// Waits for one and takes it. Where it is given up, none is taken.
    pub(crate) async fn turn(&self) {
        while !self.try_take() {
            self.ready().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn so_many_at_once_and_then_one_by_one() {
        let every = Duration::from_millis(100);
        let mut pace = Pace::new(3, every);
        let begun = Instant::now();
        for _ in 0..3 {
            pace.ready().await;
            pace.take();
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        for _ in 0..5 {
            pace.ready().await;
            pace.take();
        }
        assert!(
            (every * 5..every * 6).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
        assert!(!pace.try_take());
        tokio::time::advance(every).await;
        assert!(pace.try_take() && !pace.try_take());
        // What is not taken is not saved up beyond the first few.
        tokio::time::advance(every * 100).await;
        let rested = Instant::now();
        for _ in 0..4 {
            pace.ready().await;
            pace.take();
        }
        assert!(
            (every..every * 2).contains(&rested.elapsed()),
            "{:?}",
            rested.elapsed()
        );
    }

    #[tokio::test(start_paused = true)]
    async fn who_shares_a_pace_waits_for_the_others() {
        let every = Duration::from_millis(100);
        let pace = SharedPace::new(2, every);
        let begun = Instant::now();
        let turns = (0..5).map(|_| pace.turn());
        futures::future::join_all(turns).await;
        assert!(
            (every * 3..every * 4).contains(&begun.elapsed()),
            "{:?}",
            begun.elapsed()
        );
        assert!(!pace.try_take());
    }
}
