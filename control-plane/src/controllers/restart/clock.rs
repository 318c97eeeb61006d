//! The time that decisions are made with.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockstep_core::restart::UnixNanos;

/// Unix time that advances with the monotonic clock: a stepped wall clock moves no deadline.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    start: Instant,
    start_unix: UnixNanos,
}

impl Clock {
    /// A clock that agrees with the wall clock now.
    #[must_use]
    pub fn start() -> Self {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            start: Instant::now(),
            start_unix: UnixNanos(i64::try_from(unix.as_nanos()).unwrap_or(i64::MAX)),
        }
    }

    /// The present.
    #[must_use]
    pub fn now(&self) -> UnixNanos {
        let elapsed = i64::try_from(self.start.elapsed().as_nanos()).unwrap_or(i64::MAX);
        UnixNanos(self.start_unix.0.saturating_add(elapsed))
    }

    /// When this time comes.
    #[must_use]
    pub fn instant(&self, at: UnixNanos) -> Instant {
        let after = u64::try_from(at.0.saturating_sub(self.start_unix.0)).unwrap_or(0);
        self.start + Duration::from_nanos(after)
    }
}

/// A step that takes less is not worth a rest: timers are no finer.
const SHORT: Duration = Duration::from_millis(1);
/// The longest rest.
const LONGEST: Duration = Duration::from_millis(20);
/// The longest time that hellos are gathered.
const LONGEST_GATHERING: Duration = Duration::from_millis(100);

/// How long the nodes' next reports wait after a step that took so long, so that a large group's restart, with its thousands of reports, is a few
/// dozen steps. Who reports while nothing happens is heard at once.
pub(super) fn rest(took: Duration) -> Duration {
    if took < SHORT {
        Duration::ZERO
    } else {
        (took * 2).min(LONGEST)
    }
}

/// How long a step that takes so long is put off after a node's hello. After a leader has died thousands come within seconds, and each is a reason to decide
/// anew; all of them are one step then and again.
pub(super) fn gather(took: Duration) -> Duration {
    if took < SHORT {
        Duration::ZERO
    } else {
        (took * 10).min(LONGEST_GATHERING)
    }
}

/// Resolves at this time; never, where there is none. Cancel-safe.
pub(super) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
