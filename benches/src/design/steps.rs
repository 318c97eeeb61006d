//! What it costs that workers say which step they have done.

use std::time::Duration;

use anyhow::Result;

use super::Up;
use crate::message::{Order, now};
use crate::samples::Samples;

/// How long CPU time is measured: several periods in which the hub asks each node once.
const MEASURED: Duration = Duration::from_secs(40);

impl Up {
    /// Measures the server's load without steps and with them, and restarts with them.
    pub(super) async fn with_steps(&mut self, rounds: usize, samples: &mut Samples) -> Result<()> {
        samples.load.push(self.load().await?);
        self.fleet.order(Order::Steps).await?;
        samples.load_with_steps.push(self.load().await?);
        let mut restarts = Samples::default();
        for _ in 0..rounds {
            self.restart(&mut restarts).await?;
        }
        samples.trip_with_steps = restarts.trip;
        Ok(())
    }

    /// The share of a core that the server takes, in percent.
    async fn load(&self) -> Result<f64> {
        let (before, from) = (self.cpu()?, now());
        tokio::time::sleep(MEASURED).await;
        Ok(100.0 * (self.cpu()? - before) as f64 / (now() - from) as f64)
    }
}
