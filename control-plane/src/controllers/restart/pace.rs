//! Keeps large groups and gangs from delaying others. A tenant causes a step with each write of its
//! JobSet, and all other groups and the daemons' streams run on the same threads.
//!
//! Promises: a long step blocks no thread of the runtime, and a change does not start the next one
//! before five times its duration has passed.

use std::time::{Duration, Instant};

use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::task::block_in_place;

/// A step that takes at least this is long. One for 10,000 workers takes a fraction of it.
const LONG: Duration = Duration::from_millis(25);
/// Long steps may take this fraction of the time.
const ONE_IN: u32 = 5;
/// The longest rest.
const LONGEST_REST: Duration = Duration::from_secs(2);

/// Does some work, off the runtime's threads if the last run `took` long.
pub(crate) fn offload_if_slow<T>(took: Duration, work: impl FnOnce() -> T) -> T {
    if took >= LONG && Handle::current().runtime_flavor() == RuntimeFlavor::MultiThread {
        block_in_place(work)
    } else {
        work()
    }
}

/// The time from the start of a step of this duration to the start of the next, if the API server
/// shows a change.
pub(crate) fn rest(took: Duration) -> Duration {
    if took < LONG {
        Duration::ZERO
    } else {
        took.saturating_mul(ONE_IN).min(LONGEST_REST)
    }
}

/// When some work last began, and how long it took.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastRun {
    pub(super) began: Instant,
    pub(super) took: Duration,
}

impl LastRun {
    /// No run yet, so no rest.
    pub(super) fn none() -> Self {
        Self {
            began: Instant::now(),
            took: Duration::ZERO,
        }
    }

    /// When the work may begin again.
    pub(super) fn rested(&self) -> Instant {
        self.began + rest(self.took)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_takes_long_rests() {
        let millis = Duration::from_millis;
        assert_eq!(rest(millis(24)), millis(0));
        assert_eq!(rest(millis(30)), millis(150));
        assert_eq!(rest(millis(5_000)), LONGEST_REST);
    }

    #[test]
    fn what_takes_long_keeps_no_thread_from_others() {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .build()
            .unwrap();
        let (sender, receiver) = std::sync::mpsc::channel();
        runtime.block_on(async {
            let long = tokio::spawn(async move { offload_if_slow(LONG, || receiver.recv().is_ok()) });
            let other = tokio::spawn(async move { sender.send(()).is_ok() });
            assert!(long.await.unwrap() && other.await.unwrap());
        });
    }
}
