//! Waits for conditions.

use std::time::{Duration, Instant};

use anyhow::anyhow;

/// How long to wait between two looks.
const INTERVAL: Duration = Duration::from_millis(50);

/// Interval between two calls of a probe by [`eventually`].
const EVENTUALLY_INTERVAL: Duration = Duration::from_millis(100);

/// What was waited for did not come.
#[derive(Debug, thiserror::Error)]
#[error("waited {} s in vain until {what}", waited.as_secs_f64())]
pub struct TimedOut {
    /// What was waited for.
    pub what: String,
    /// For how long.
    pub waited: Duration,
}

/// Looks again and again until `look` gives something.
pub async fn until<T>(
    what: impl Into<String>,
    patience: Duration,
    mut look: impl AsyncFnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    let start = Instant::now();
    loop {
        if let Some(found) = look().await {
            return Ok(found);
        }
        if start.elapsed() > patience {
            return Err(TimedOut {
                what: what.into(),
                waited: start.elapsed(),
            });
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Looks until `probe` gives a value, and returns it.
///
/// # Errors
/// When `within` is over; the error has `what` and the reason that the last look gave.
pub async fn eventually<T>(
    what: &str,
    within: Duration,
    mut probe: impl AsyncFnMut() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let start = Instant::now();
    loop {
        match probe().await {
            Ok(value) => return Ok(value),
            Err(reason) if start.elapsed() >= within => {
                return Err(anyhow!("not within {} s: {what}: {reason:#}", within.as_secs()));
            }
            Err(_) => tokio::time::sleep(EVENTUALLY_INTERVAL).await,
        }
    }
}
