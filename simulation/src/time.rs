//! Virtual time.

use std::time::Duration;

/// Nanoseconds since the simulated world began.
pub(crate) type Time = u64;

/// One microsecond.
pub(crate) const US: Time = 1_000;
/// One millisecond.
pub(crate) const MS: Time = 1_000_000;
/// One second.
pub(crate) const SEC: Time = 1_000_000_000;

/// What right clocks show when the world begins, nanoseconds since the Unix epoch.
const BEGIN_UNIX: i64 = 1_700_000_000_000_000_000;

/// What a clock that is `ahead` nanoseconds wrong shows.
#[must_use]
pub(crate) fn unix(now: Time, ahead: i64) -> i64 {
    BEGIN_UNIX
        .saturating_add(i64::try_from(now).unwrap_or(i64::MAX))
        .saturating_add(ahead)
}

/// The same length of time.
#[must_use]
pub(crate) fn span(time: Duration) -> Time {
    Time::try_from(time.as_nanos()).unwrap_or(Time::MAX)
}

/// Seconds with microseconds, for people.
#[must_use]
pub(crate) fn show(now: Time) -> String {
    format!("{:>4}.{:06}", now / SEC, now % SEC / US)
}
