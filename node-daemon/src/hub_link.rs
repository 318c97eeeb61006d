//! The link to the control plane: one stream, kept up while the daemon lives.
//!
//! ```text
//!              ┌──────────── Drain, end, error (back-off 50 ms to 5 s, reset by Desired) ───────────┐
//!              v                                                                                    │
//!  connect ──Hello{snapshot}──> Welcome ──> Report, Pong, Credentials  ↔  Desired, Forget, Ping ────┤
//!              │                                                                                    │
//!              ├──> NotLeader{address}: connect there at once ──────────────────────────────────────┤
//!              └──> refused (protocol version): logged, tried again every 30 s ─────────────────────┘
//! ```
//!
//! A stream that stays open for 10 s resets the back-off as well; a Welcome does not. A lost link
//! affects no worker. What changes meanwhile is in the next snapshot.

mod connect;
pub mod convert;
pub mod error;
mod outgoing;
mod renewal;
pub mod session;
mod trust;

use std::path::PathBuf;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use tracing::{error, info, warn};

use crate::worker::driver::{Closed, Handle};
use error::SessionError;
use session::{End, Progress};

const MIN_DELAY: Duration = Duration::from_millis(50);
/// Half of the longest delay: jitter adds up to as much again.
const MAX_DELAY: Duration = Duration::from_millis(2500);
/// Time between attempts when the hub speaks another protocol: only an upgrade helps.
const REFUSED_DELAY: Duration = Duration::from_secs(30);
/// Redirects in a row that are followed without delay.
const MAX_REDIRECTS: u32 = 3;

/// The hub's address, and how the hub and this daemon authenticate.
#[derive(Debug, Clone)]
pub struct Hub {
    /// Address of any replica, `https://host:port`.
    pub address: String,
    /// Its CA, read again at every connect.
    pub ca_file: PathBuf,
    /// Name in its certificate.
    pub server_name: String,
    /// Token of this daemon, read again at every connect and every few seconds.
    pub token_file: PathBuf,
    /// /proc/sys/kernel/random/boot_id.
    pub boot_id: String,
}

/// Keeps the link up.
///
/// # Errors
/// When the daemon is going down.
pub async fn serve(hub: &Hub, workers: &Handle) -> Result<(), Closed> {
    serve_with(hub, workers, REFUSED_DELAY).await
}

async fn serve_with(hub: &Hub, workers: &Handle, refused_delay: Duration) -> Result<(), Closed> {
    let delays = || {
        ExponentialBuilder::default()
            .with_min_delay(MIN_DELAY)
            .with_max_delay(MAX_DELAY)
            .with_jitter()
            .without_max_times()
            .build()
    };
    let mut delay = delays();
    let mut address = hub.address.clone();
    let mut redirects = 0;
    loop {
        let mut progress = Progress::default();
        let ended = session::run(hub, &address, workers, &mut progress).await;
        if progress.is_welcome() {
            redirects = 0;
        }
        if progress.is_settled() {
            delay = delays();
        }
        let mut next = hub.address.clone();
        // A redirect that is followed at once leaves the back-off of failures unchanged.
        let at_once = redirects < MAX_REDIRECTS && matches!(ended, Ok(End::NotLeader(Some(_))));
        let mut wait = match at_once {
            true => Duration::ZERO,
            false => delay.next().unwrap_or(MAX_DELAY),
        };
        match ended {
            Ok(End::Closed) => info!(address, "the hub has closed the stream"),
            Ok(End::Drained) => info!(address, "the hub has drained the stream"),
            Ok(End::NotLeader(Some(leader))) => {
                info!(address, leader, "not the leader");
                next = leader;
                redirects += 1;
            }
            Ok(End::NotLeader(None)) => info!(address, "not the leader, and the leader is not known yet"),
            Err(SessionError::Daemon(closed)) => return Err(closed),
            Err(failure @ (SessionError::Refused(_) | SessionError::Protocol(_))) => {
                error!(address, error = %failure, "the hub and this daemon do not speak the same protocol: upgrade the older one");
                wait = refused_delay;
            }
            Err(failure) => {
                warn!(address, error = %failure, delay_ms = wait.as_millis(), "no link to the hub")
            }
        }
        address = next;
        tokio::time::sleep(wait).await;
    }
}

#[cfg(test)]
mod tests;
