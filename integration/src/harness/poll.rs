//! Waiting for levels.

use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(100);

/// Looks until `probe` gives a value, and returns it.
///
/// # Errors
/// When `within` is over; the error has `what` and the reason that the last look gave.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut probe: impl AsyncFnMut() -> Result<T>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(reason) if start.elapsed() >= within => {
                return Err(anyhow!("not within {} s: {what}: {reason:#}", within.as_secs()));
            }
            Err(_) => tokio::time::sleep(PAUSE).await,
        }
    }
}
