//! Stops containers, many at a time, without ever making the driver wait.

use std::path::Path;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tonic::transport::{Channel, Endpoint};
use tracing::warn;

use crate::cri;
use crate::worker::driver::{Closed, Handle};
use crate::worker::facts::Input;
use crate::worker::types::ContainerId;

/// Containers that may wait to be stopped. More than a node runs.
pub const QUEUE: usize = 1024;
/// Most stops under way at a time.
const AT_A_TIME: usize = 64;
/// Limit for one stop: a containerd that takes longer hangs.
const STOP_TIMEOUT: Duration = Duration::from_secs(10);
/// By this time the end of a stopped container was observed. One that still runs is stopped again.
const SEEN: Duration = Duration::from_secs(1);

/// Stops what comes through `queue`, while the daemon lives.
///
/// # Errors
/// When the daemon is going down.
pub async fn serve(
    socket: &Path,
    mut queue: mpsc::Receiver<ContainerId>,
    workers: &Handle,
) -> Result<(), Closed> {
    let channel = Endpoint::from_static("http://containerd")
        .connect_with_connector_lazy(cri::connector(socket.to_owned()));
    let mut stops = JoinSet::new();
    loop {
        tokio::select! {
            id = queue.recv(), if stops.len() < AT_A_TIME => match id {
                Some(id) => drop(stops.spawn(stop(channel.clone(), id))),
                None => return Err(Closed),
            },
            Some(stopped) = stops.join_next() => match stopped {
                Ok(id) => workers.tell(Input::StopOver(id)).await?,
                Err(error) => warn!(%error, "a task that stops a container failed"),
            },
        }
    }
}

async fn stop(channel: Channel, id: ContainerId) -> ContainerId {
    match timeout(STOP_TIMEOUT, cri::kill(&channel, &id)).await {
        Ok(Ok(())) => {}
        Ok(Err(status)) => {
            warn!(container = %id, error = status.message(), "container not stopped, will retry")
        }
        Err(_) => warn!(container = %id, "container not stopped in time, will retry"),
    }
    sleep(SEEN).await;
    id
}
