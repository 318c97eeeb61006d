//! Waiting for something to be so.

use std::time::{Duration, Instant};

/// How long to wait between two looks.
const INTERVAL: Duration = Duration::from_millis(50);

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
