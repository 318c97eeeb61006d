//! The daemon as an NRI plugin: containerd asks it about every container that it creates, and it puts the agent in front of the workers.
//!
//! [`mux`] and [`ttrpc`] are NRI's transport, [`inject`] decides (pure), [`plugin`] is one connection, [`serve`] keeps one up.

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

/// Keeps a plugin connection to `socket` up for as long as the daemon lives.
///
/// # Errors
/// When the daemon is going down.
pub async fn serve(socket: &Path, plugin: &Plugin) -> Result<(), Closed> {
    let health = plugin.workers.health();
    let mut away = false;
    loop {
        match UnixStream::connect(socket).await {
            Ok(stream) => {
                away = false;
                match plugin.serve(stream).await {
                    Ok(()) => {
                        health.nri(Err(&"containerd has closed the connection"));
                        info!("containerd has closed the NRI connection");
                    }
                    Err(PluginError::Closed(closed)) => return Err(closed),
                    Err(error) => {
                        health.nri(Err(&error));
                        warn!(%error, "NRI connection lost");
                    }
                }
            }
            Err(error) if away => debug!(%error, "NRI is still away"),
            Err(error) => {
                health.nri(Err(&error));
                warn!(socket = %socket.display(), %error, "NRI is away: workers that are created now start without an agent");
                away = true;
            }
        }
        tokio::time::sleep(RETRY).await;
    }
}
