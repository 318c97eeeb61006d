//! The time on which decisions are based.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lockstep_core::restart::UnixNanos;

/// Unix time that advances with the monotonic clock, so that a step of the wall clock moves no
/// deadline.
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

    /// The current time.
    #[must_use]
    pub fn now(&self) -> UnixNanos {
        let elapsed = i64::try_from(self.start.elapsed().as_nanos()).unwrap_or(i64::MAX);
        UnixNanos(self.start_unix.0.saturating_add(elapsed))
    }

    /// The instant of this time.
    #[must_use]
    pub fn instant(&self, at: UnixNanos) -> Instant {
        let after = u64::try_from(at.0.saturating_sub(self.start_unix.0)).unwrap_or(0);
        self.start + Duration::from_nanos(after)
    }
}

/// No rest follows a shorter step, because timers are no finer than this.
const SHORT: Duration = Duration::from_millis(1);
/// The longest rest.
const LONGEST: Duration = Duration::from_millis(20);
/// The longest time for which a step waits for more hellos.
const LONGEST_GATHERING: Duration = Duration::from_millis(100);

/// How long the next reports of nodes wait after a step of this duration. A large group's restart
/// brings thousands of reports: with these rests they take a few dozen steps. A report after this
/// time is read at once.
pub(super) fn rest(took: Duration) -> Duration {
    if took < SHORT {
        Duration::ZERO
    } else {
        (took * 2).min(LONGEST)
    }
}

/// How long a step of this duration is put off after a node's hello. After a leader has died,
/// thousands of hellos arrive within seconds, and each asks for a step. The delay combines them.
pub(super) fn gather(took: Duration) -> Duration {
    if took < SHORT {
        Duration::ZERO
    } else {
        (took * 10).min(LONGEST_GATHERING)
    }
}

/// Resolves at this time, or never without one. Cancel-safe.
pub(super) async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}
