//! Waits for conditions.

use std::time::{Duration, Instant};

use anyhow::anyhow;

/// Interval between two calls of a probe by [`until`].
const INTERVAL: Duration = Duration::from_millis(50);

/// Interval between two calls of a probe by [`eventually`].
const EVENTUALLY_INTERVAL: Duration = Duration::from_millis(100);

/// A condition did not become true in time.
#[derive(Debug, thiserror::Error)]
#[error("timed out after {} s, waiting until {what}", waited.as_secs_f64())]
pub struct TimedOut {
    /// The condition.
    pub what: String,
    /// How long this waited.
    pub waited: Duration,
}

/// Calls `probe` until it returns a value.
pub async fn until<T>(
    what: impl Into<String>,
    timeout: Duration,
    mut probe: impl AsyncFnMut() -> Option<T>,
) -> Result<T, TimedOut> {
    let start = Instant::now();
    loop {
        if let Some(found) = probe().await {
            return Ok(found);
        }
        if start.elapsed() > timeout {
            return Err(TimedOut {
                what: what.into(),
                waited: start.elapsed(),
            });
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Calls `probe` until it succeeds, and returns its value.
///
/// # Errors
/// If it has not succeeded after `within`. The error has `what` and the last error of `probe`.
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
                return Err(anyhow!(
                    "timed out after {} s: {what}: {reason:#}",
                    within.as_secs()
                ));
            }
            Err(_) => tokio::time::sleep(EVENTUALLY_INTERVAL).await,
        }
    }
}
