//! Whether a thread gets on.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often it beats.
const EVERY: Duration = Duration::from_secs(1);
/// A thread without a beat for so long is stuck. Its longest step is a list of many objects, which
/// takes a second or two, and may take ten times as long with a tenth of a core; kubelet asks six
/// times more before it starts the container again.
const STUCK: Duration = Duration::from_secs(60);

/// A beat that a thread keeps up between its steps. Clones are the same one. Any thread can read
/// it.
#[derive(Clone, Debug)]
pub struct Pulse {
    start: Instant,
    /// Milliseconds from the start to the last beat.
    last: Arc<AtomicU64>,
}

impl Pulse {
    /// One that beats now for the first time.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            last: Arc::default(),
        }
    }

    /// Beats, as a task of the thread that is watched, for as long as that lives.
    pub(super) async fn keep(self) {
        loop {
            let since = self.start.elapsed().as_millis();
            self.last
                .store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
            tokio::time::sleep(EVERY).await;
        }
    }

    /// For how long the thread has been stuck at this time. `None`: it gets on.
    pub(crate) fn stuck_for(&self, now: Instant) -> Option<Duration> {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let silent = now.saturating_duration_since(self.start).saturating_sub(last);
        (silent > STUCK).then_some(silent)
    }
}
