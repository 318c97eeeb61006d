//! How long to wait before something is tried again that the API server has refused.

use std::time::Duration;

mod failures;
#[cfg(test)]
mod tests;

pub(crate) use failures::Failures;

/// The first and the longest wait after a failure.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(300));

/// How long to wait after so many failures in a row.
pub(crate) fn delay(failures: u32) -> Duration {
    let factor = 2_u32.saturating_pow(failures.saturating_sub(1));
    RETRY.0.saturating_mul(factor).min(RETRY.1)
}
