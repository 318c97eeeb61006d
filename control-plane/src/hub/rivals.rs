//! Epochs that others have heard of.

use lockstep_core::restart::Epoch;
use tokio::sync::watch;

/// How far an epoch of before a restore may be above the present one: more writes than a store ever sees.
const FARTHEST: u64 = 1 << 40;

/// The highest epoch that nodes or statuses speak of. Above this leader's own, either another one has been elected, or the store was restored
/// from a backup and hands out versions, and with them epochs, that were used before: no node would obey.
#[derive(Debug)]
pub(super) struct Rivals {
    own: Epoch,
    highest: watch::Sender<Epoch>,
}

impl Rivals {
    pub(super) fn new(own: Epoch) -> Self {
        Self {
            own,
            highest: watch::Sender::new(own),
        }
    }

    /// Somebody knows of this epoch. What no restore can explain is not believed: it would use up the numbers.
    pub(super) fn note(&self, epoch: Epoch) {
        if epoch.0 > self.own.0.saturating_add(FARTHEST) {
            tracing::warn!(%epoch, own = %self.own, "an epoch that cannot be is ignored");
            return;
        }
        self.highest.send_if_modified(|highest| {
            let higher = epoch > *highest;
            if higher {
                *highest = epoch;
            }
            higher
        });
    }

    /// Resolves once there is an epoch above this leader's own. Cancel-safe.
    pub(super) async fn outbid(&self) -> Epoch {
        let mut highest = self.highest.subscribe();
        let outbid = highest.wait_for(|highest| *highest > self.own).await;
        match outbid.map(|highest| *highest) {
            Ok(highest) => highest,
            // The sender is `self`.
            Err(_) => std::future::pending().await,
        }
    }
}
