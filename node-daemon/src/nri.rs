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
/// Time between attempts while containerd accepts the plugin again and again but tells it of no
/// pods: it reads all of them each time.
const RETRY_LATER: Duration = Duration::from_secs(5);
/// Connections in a row that may end so before that is logged.
const IN_VAIN: u32 = 3;
/// The line that is logged then. NRI sends at least eight pods and containers in one ttrpc message,
/// and drops the plugin if that is too large.
const NOT_TOLD: &str = "containerd closes each connection before it has told of the node's pods: eight pods and containers may be larger than the 4 MiB that \
    NRI sends at once, by their environment";

/// Keeps a plugin connection to `socket` up while the daemon lives.
///
/// # Errors
/// When the daemon is going down.
pub async fn serve(socket: &Path, plugin: &Plugin) -> Result<(), Closed> {
    let health = plugin.workers.health();
    let mut away = false;
    let mut in_vain: u32 = 0;
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => {
                away = false;
                let ended = plugin.serve(stream).await;
                in_vain = if health.has_nri() {
                    0
                } else {
                    in_vain.saturating_add(1)
                };
                match ended {
                    Err(PluginError::Closed(closed)) => return Err(closed),
                    // It was logged, and is logged again after a better connection.
                    ended if in_vain > IN_VAIN => debug!(?ended, in_vain, "NRI connection lost"),
                    Ok(()) | Err(PluginError::Io(_)) if in_vain == IN_VAIN => {
                        health.nri_stays_away(NOT_TOLD);
                        warn!(
                            because = NOT_TOLD,
                            "NRI does not work here: workers that are created now start without an agent"
                        );
                    }
                    Ok(()) => {
                        health.nri(Err(&"containerd has closed the connection"));
                        info!("containerd has closed the NRI connection");
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
                in_vain = 0;
                health.nri(Err(&error));
                warn!(socket = %socket.display(), %error, "NRI is away: workers that are created now start without an agent");
                away = true;
            }
        }
        tokio::time::sleep(wait(in_vain)).await;
    }
}

/// Time to the next attempt, after this many connections in which containerd told of no pods.
fn wait(in_vain: u32) -> Duration {
    let doublings = in_vain.saturating_sub(IN_VAIN).min(16);
    RETRY.saturating_mul(1 << doublings).min(RETRY_LATER)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_are_in_vain_become_rare() {
        let waits = |from: u32, to: u32| (from..to).map(wait).sum::<Duration>();
        // A containerd that is restarted is not waited for longer than before.
        assert_eq!(waits(0, IN_VAIN + 1), RETRY * (IN_VAIN + 1));
        assert!(waits(0, 10) > Duration::from_secs(10), "{:?}", waits(0, 10));
        assert_eq!(wait(u32::MAX), RETRY_LATER);
    }
}
