//! Notices that kubelet has renewed the daemon's token, which it does long before the old one expires.

use std::time::Duration;

use tokio::time::{Interval, MissedTickBehavior, interval};

use super::{Hub, connect};

/// How often the file is read.
const LOOK: Duration = Duration::from_secs(10);

/// Follows the file with the token.
pub(super) struct Renewal<'a> {
    hub: &'a Hub,
    known: String,
    look: Interval,
}

impl<'a> Renewal<'a> {
    /// From this token on.
    pub(super) fn new(hub: &'a Hub, known: String) -> Self {
        let mut look = interval(LOOK);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { hub, known, look }
    }

    /// The next other token. Cancel safe.
    pub(super) async fn next(&mut self) -> String {
        loop {
            self.look.tick().await;
            // A file that cannot be read now is read again.
            let Ok(token) = connect::token(self.hub).await else {
                continue;
            };
            if !token.is_empty() && token != self.known {
                self.known.clone_from(&token);
                return token;
            }
        }
    }
}
