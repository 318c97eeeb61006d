//! Times and durations as text.

use jiff::{SignedDuration, Timestamp};

/// An age in at most two units, as in kubectl. A time in the future is 0s ago, since clocks differ.
pub(crate) fn ago(at: Timestamp, now: Timestamp) -> String {
    span(now.duration_since(at))
}

/// A duration in at most two units.
pub(crate) fn span(duration: SignedDuration) -> String {
    let seconds = duration.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 if seconds % 60 != 0 => format!("{minutes}m{}s", seconds % 60),
        120..10_800 => format!("{minutes}m"),
        10_800..172_800 if minutes % 60 != 0 && hours < 8 => format!("{hours}h{}m", minutes % 60),
        10_800..172_800 => format!("{hours}h"),
        _ if hours % 24 != 0 && days < 8 => format!("{days}d{}h", hours % 24),
        _ => format!("{days}d"),
    }
}

/// Milliseconds with one decimal below ten seconds, above in seconds.
pub(crate) fn took(millis: f64) -> String {
    if millis < 10_000.0 {
        format!("{millis:.1} ms")
    } else {
        format!("{:.1} s", millis / 1000.0)
    }
}

/// A time from nanoseconds since the Unix epoch; none for 0 and for values out of range.
pub(crate) fn from_nanos(nanos: i64) -> Option<Timestamp> {
    (nanos != 0)
        .then(|| Timestamp::from_nanosecond(i128::from(nanos)).ok())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_short() {
        for (seconds, shown) in [
            (-5, "0s"),
            (119, "119s"),
            (125, "2m5s"),
            (180, "3m"),
            (3600, "60m"),
            (10_860, "3h1m"),
            (90_000, "25h"),
            (200_000, "2d7h"),
            (1_000_000, "11d"),
        ] {
            assert_eq!(span(SignedDuration::from_secs(seconds)), shown);
        }
    }

    #[test]
    fn durations_of_restarts_have_a_unit() {
        assert_eq!(took(31.25), "31.2 ms");
        assert_eq!(took(4780.0), "4780.0 ms");
        assert_eq!(took(13_700.0), "13.7 s");
    }
}
