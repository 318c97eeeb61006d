//! The clock that nobody sets.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds since the machine booted, as start times of processes count them; 0 where that cannot be read.
pub(crate) fn boot_nanos() -> u64 {
    clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(0, |time| {
        u64::try_from(Duration::from(time).as_nanos()).unwrap_or(u64::MAX)
    })
}
