//! Who was refused at a pod's socket: logged at once, and then rarely, however often a worker tries.

use std::error::Error;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use crate::worker::types::PodUid;

/// Time between two lines about one pod.
const QUIET: Duration = Duration::from_secs(600);

/// More connections than the containers of a pod need.
#[derive(Debug, thiserror::Error)]
#[error("the pod has too many connections")]
pub struct TooMany;

/// What was refused at one socket.
#[derive(Default)]
pub struct Refusals(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    all: u64,
    logged: Option<Instant>,
}

impl Refusals {
    /// One more, and why.
    pub fn note(&self, pod: &PodUid, error: &dyn Error) {
        if let Some(all) = self.news() {
            warn!(%pod, %error, all, "agent refused");
        }
    }

    /// How many there were, where it is time to say so.
    fn news(&self) -> Option<u64> {
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all += 1;
        let quiet = counts.logged.is_some_and(|at| at.elapsed() < QUIET);
        if quiet {
            return None;
        }
        counts.logged = Some(Instant::now());
        Some(counts.all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_is_refused_again_and_again_is_counted_and_said_rarely() {
        let refusals = Refusals::default();
        assert_eq!(refusals.news(), Some(1));
        for _ in 0..1000 {
            assert_eq!(refusals.news(), None);
        }
        tokio::time::advance(QUIET).await;
        assert_eq!(refusals.news(), Some(1002));
    }
}
