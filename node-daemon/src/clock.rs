//! The two clocks of the node: the wall clock, which may be set, and the boot clock, which never
//! is.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockstep_protocol::{BootNanos, UnixNanos};
use nix::time::{ClockId, clock_gettime};

/// Now, by the wall clock.
#[must_use]
pub fn unix_nanos() -> UnixNanos {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    UnixNanos(since.map_or(0, |since| i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)))
}

/// Now, by the boot clock; 0 if it cannot be read.
#[must_use]
pub fn boot_nanos() -> BootNanos {
    let since = clock_gettime(ClockId::CLOCK_BOOTTIME).map(Duration::from);
    BootNanos(since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)))
}
