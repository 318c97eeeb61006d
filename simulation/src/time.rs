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

/// The true time when the world begins, in nanoseconds since the Unix epoch.
const BEGIN_UNIX: i64 = 1_700_000_000_000_000_000;

/// The time on a clock that is `ahead` nanoseconds fast.
#[must_use]
pub(crate) fn unix(now: Time, ahead: i64) -> i64 {
    BEGIN_UNIX
        .saturating_add(i64::try_from(now).unwrap_or(i64::MAX))
        .saturating_add(ahead)
}

/// Converts a duration.
#[must_use]
pub(crate) fn span(time: Duration) -> Time {
    Time::try_from(time.as_nanos()).unwrap_or(Time::MAX)
}

/// Formats a time as seconds with microseconds.
#[must_use]
pub(crate) fn show(now: Time) -> String {
    format!("{:>4}.{:06}", now / SEC, now % SEC / US)
}
