//! The daemon as an NRI plugin: containerd asks it about every container that it creates, and it
//! puts the agent in front of the workers.
//!
//! [`mux`] and [`ttrpc`] are NRI's transport, [`inject`] decides (pure), [`plugin`] is one
//! connection, [`serve`] keeps one up.

pub mod convert;
pub mod inject;
pub mod mux;
pub mod plugin;
pub mod ttrpc;

use std::path::Path;
use std::time::Duration;

use tokio::net::UnixStream;
use tracing::{debug, info, warn};

use crate::worker::driver::Closed;
use plugin::{Plugin, PluginError};

/// Time between attempts. Short: a container that is created meanwhile starts without its agent.
const RETRY: Duration = Duration::from_millis(200);
/// Time between attempts while containerd accepts the plugin but never lists its pods: it reads all
/// of them each time.
const RETRY_LATER: Duration = Duration::from_secs(5);
/// Connections in a row that may end without a list of pods before that is logged.
const MAX_EMPTY: u32 = 3;
/// The reason that is logged then. NRI sends at least eight pods and containers in one ttrpc
/// message, and drops the plugin if that is too large.
const NO_PODS: &str = "containerd closes each connection before it has listed the node's pods: eight pods and containers may exceed the 4 MiB that NRI \
    sends at once, because of their environment variables";

/// Keeps a plugin connection to `socket` up while the daemon lives.
///
/// # Errors
/// When the daemon is going down.
pub async fn serve(socket: &Path, plugin: &Plugin) -> Result<(), Closed> {
    let health = plugin.workers.health();
    let mut away = false;
    let mut empty: u32 = 0;
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => {
                away = false;
                let ended = plugin.serve(stream).await;
                empty = if health.has_nri() {
                    0
                } else {
                    empty.saturating_add(1)
                };
                match ended {
                    Err(PluginError::Closed(closed)) => return Err(closed),
                    // Already logged, and logged again after a better connection.
                    ended if empty > MAX_EMPTY => debug!(?ended, empty, "NRI connection lost"),
                    Ok(()) | Err(PluginError::Io(_)) if empty == MAX_EMPTY => {
                        health.nri_stays_away(NO_PODS);
                        warn!(
                            because = NO_PODS,
                            "NRI does not work here: workers that are created now start without an agent"
                        );
                    }
                    Ok(()) => {
                        health.nri(Err(&"containerd has closed the connection"));
                        info!("containerd has closed the NRI connection");
                    }
                    Err(PluginError::TooOld(error)) => {
                        health.nri_stays_away(&error.to_string());
                        warn!(%error, "NRI does not work here: workers that are created now start without an agent");
                    }
                    Err(error) => {
                        health.nri(Err(&error));
                        warn!(%error, "NRI connection lost");
                    }
                }
            }
            Err(error) if away => debug!(%error, "NRI is still away"),
            Err(error) => {
                // The next containerd may have other pods.
                empty = 0;
                health.nri(Err(&error));
                warn!(socket = %socket.display(), %error, "NRI is away: workers that are created now start without an agent");
                away = true;
            }
        }
        tokio::time::sleep(wait(empty)).await;
    }
}

/// Wait before the next attempt, after this many connections in which containerd listed no pods.
fn wait(empty: u32) -> Duration {
    let doublings = empty.saturating_sub(MAX_EMPTY).min(16);
    RETRY.saturating_mul(1 << doublings).min(RETRY_LATER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_become_rare_if_containerd_lists_no_pods() {
        let waits = |from: u32, to: u32| (from..to).map(wait).sum::<Duration>();
        // The wait for a containerd that restarts is as short as before.
        assert_eq!(waits(0, MAX_EMPTY + 1), RETRY * (MAX_EMPTY + 1));
        assert!(waits(0, 10) > Duration::from_secs(10), "{:?}", waits(0, 10));
        assert_eq!(wait(u32::MAX), RETRY_LATER);
    }
}
