//! Limits for all connections to one pod's socket together: any process of the pod may be the peer.
//! Each refusal is counted. The first one is logged, and after that at most one every ten minutes.

use std::error::Error;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lockstep_process::rate_limit::{Rate, SharedRateLimit};
use tokio::time::Instant;
use tracing::warn;

use crate::health::Health;
use crate::worker::types::PodUid;

/// Time between two lines about one pod.
const QUIET: Duration = Duration::from_secs(600);

/// Rate of checked registrations. Each worker registers once, and again after the daemon restarts.
const REGISTRATIONS: Rate = Rate {
    burst: 64,
    every: Duration::from_millis(100),
};
/// Rate of states, from all agents of the pod.
const STATES: Rate = Rate {
    burst: 512,
    every: Duration::from_millis(10),
};

/// More connections than the containers of a pod need.
#[derive(Debug, thiserror::Error)]
#[error("the pod has too many connections")]
pub struct TooMany;

/// What was refused at one socket.
pub struct Refusals {
    /// Limits registrations.
    pub(super) registrations: SharedRateLimit,
    /// Limits states.
    pub(super) states: SharedRateLimit,
    counts: Mutex<Counts>,
    /// Counts the refusals of all sockets.
    health: Arc<Health>,
}

#[derive(Default)]
struct Counts {
    all: u64,
    logged: Option<Instant>,
}

impl Refusals {
    /// No refusals yet.
    #[must_use]
    pub fn new(health: Arc<Health>) -> Self {
        Self {
            registrations: SharedRateLimit::new(REGISTRATIONS),
            states: SharedRateLimit::new(STATES),
            counts: Mutex::default(),
            health,
        }
    }

    /// Counts a refusal, and logs it if a line is due.
    pub fn note(&self, pod: &PodUid, error: &dyn Error) {
        self.health.agent_refused();
        if let Some(all) = self.next_line() {
            warn!(%pod, %error, all, "agent refused");
        }
    }

    /// The number of refusals so far, if it is time to log it.
    fn next_line(&self) -> Option<u64> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
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
    async fn repeated_refusals_are_counted_and_rarely_logged() {
        let refusals = Refusals::new(Arc::default());
        assert_eq!(refusals.next_line(), Some(1));
        for _ in 0..1000 {
            assert_eq!(refusals.next_line(), None);
        }
        tokio::time::advance(QUIET).await;
        assert_eq!(refusals.next_line(), Some(1002));
    }

    #[test]
    fn refusals_of_all_sockets_are_counted_together() {
        let health = Arc::<Health>::default();
        for pod in ["p", "p", "q"] {
            Refusals::new(health.clone()).note(&pod.into(), &TooMany);
        }
        assert_eq!(health.refused_agents(), 3);
    }
}
