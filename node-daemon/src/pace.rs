//! How often something may happen: a number of times at once, and then once in so long.

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
    fn next(&self) -> Instant {
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
}
