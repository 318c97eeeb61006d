//! How fast a node may talk.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// Spaces what comes too fast, and loses nothing: so many per second in the long run, and a burst of some (GCRA, ITU-T I.371).
pub(super) struct Pace {
    every: Duration,
    burst: Duration,
    /// When the next one would come if all came evenly.
    even: Instant,
}

impl Pace {
    pub(super) fn new(per_second: u32, burst: u32) -> Self {
        let every = Duration::from_secs(1) / per_second;
        Self {
            every,
            burst: every * burst,
            even: Instant::now(),
        }
    }

    /// Resolves once the next one may come. Cancel-safe.
    pub(super) async fn ready(&self) {
        // Nearly always it may come at once: then no timer is made.
        if let Some(at) = self.even.checked_sub(self.burst)
            && at > Instant::now()
        {
            sleep_until(at).await;
        }
    }

    /// One has come.
    pub(super) fn took(&mut self) {
        self.even = self.even.max(Instant::now()) + self.every;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_burst_passes_and_the_rest_is_spaced() {
        let mut pace = Pace::new(100, 50);
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
