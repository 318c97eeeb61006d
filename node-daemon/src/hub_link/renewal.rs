//! Notices that the kubelet has renewed the daemon's token, long before the old one expires, and
//! passes it on to the hub.
//!
//! Promises: a token that the hub has not accepted is sent again while the stream is open.

use std::time::Duration;

use lockstep_proto::node::v1 as wire;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

use super::{Hub, connect};

/// How often the file is read.
const READ_EVERY: Duration = Duration::from_secs(10);
/// A token that was not accepted is sent again after this time: the hub may have been unable to
/// check it.
const RESEND_AFTER: Duration = Duration::from_secs(60);

/// Follows the token file.
pub(super) struct Renewal<'a> {
    hub: &'a Hub,
    known: String,
    /// Number of tokens sent on this stream.
    serial: u64,
    /// When the newest was sent, while it is not accepted.
    sent: Option<Instant>,
    ticks: Interval,
}

impl<'a> Renewal<'a> {
    /// Starts from the token that opened the stream.
    pub(super) fn new(hub: &'a Hub, known: String) -> Self {
        let mut ticks = interval(READ_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            hub,
            known,
            serial: 0,
            sent: None,
            ticks,
        }
    }

    /// The hub has accepted the token of this serial.
    pub(super) fn accepted(&mut self, serial: u64) {
        if serial == self.serial {
            self.sent = None;
        }
    }

    /// The next token to send. Cancel safe.
    pub(super) async fn next(&mut self) -> wire::Credentials {
        loop {
            self.ticks.tick().await;
            // A file that cannot be read now is read again.
            let Ok(token) = connect::token(self.hub).await else {
                continue;
            };
            let is_new = !token.is_empty() && token != self.known;
            if is_new {
                self.known = token;
                self.serial += 1;
            }
            if is_new || self.sent.is_some_and(|at| at.elapsed() >= RESEND_AFTER) {
                self.sent = Some(Instant::now());
                return wire::Credentials {
                    token: self.known.clone(),
                    serial: self.serial,
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub(token: &std::path::Path) -> Hub {
        Hub {
            address: String::new(),
            ca_file: std::path::PathBuf::new(),
            server_name: String::new(),
            token_file: token.to_owned(),
            boot_id: String::new(),
        }
    }

    /// The time until the next token, and its serial; nothing within ten minutes.
    async fn next(renewal: &mut Renewal<'_>) -> Option<(u64, u64)> {
        let began = Instant::now();
        let next = tokio::time::timeout(Duration::from_secs(600), renewal.next()).await;
        next.ok()
            .map(|credentials| (began.elapsed().as_secs(), credentials.serial))
    }

    #[tokio::test(start_paused = true)]
    async fn a_token_is_sent_again_until_it_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("token");
        std::fs::write(&file, "first").unwrap();
        let hub = hub(&file);
        let mut renewal = Renewal::new(&hub, "first".to_owned());
        assert_eq!(next(&mut renewal).await, None, "the stream was opened with it");

        std::fs::write(&file, "second").unwrap();
        assert_eq!(next(&mut renewal).await.unwrap().1, 1);
        // It was lost, or could not be checked.
        assert_eq!(next(&mut renewal).await, Some((60, 1)));
        std::fs::write(&file, "third").unwrap();
        assert_eq!(next(&mut renewal).await, Some((10, 2)));
        renewal.accepted(1);
        assert_eq!(next(&mut renewal).await, Some((60, 2)));
        renewal.accepted(2);
        assert_eq!(next(&mut renewal).await, None);
    }
}
