//! Builds the parts of the daemon and wires them.

use std::collections::BTreeSet;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::{info, warn};

use crate::agents::connection::Context;
use crate::agents::hostkill::ProcKiller;
use crate::agents::peer::ProcPeerCheck;
use crate::agents::sockets::Sockets;
use crate::args::Args;
use crate::hub_link::Hub;
use crate::nri::plugin::Plugin;
use crate::plain::record::Files;
use crate::plain::stop;
use crate::worker::driver::{Closed, Driver, Handle, Host, Plain};
use crate::worker::epochs::EpochFile;
use crate::worker::facts::HostKill;
use crate::worker::state::Table;
use crate::worker::types::{ContainerId, Epoch, PodUid};
use crate::{events, hub_link, install, nri, plain};

/// Runs the daemon until a signal ends it. Agents and workers keep running.
///
/// # Errors
/// When it cannot start, or one of its parts has failed.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let agent = install::install(&args.agent_binary, &args.state_dir).context("cannot install the agent")?;
    info!(node = args.node_name, agent = %agent.dir.display(), version = env!("CARGO_PKG_VERSION"), "starting the node daemon");
    let hub = Hub {
        address: args.hub,
        ca_file: args.hub_ca,
        server_name: args.hub_server_name,
        token_file: args.token_file,
        boot_id: boot_id().context("cannot read the boot id")?,
    };
    let (driver, workers, to_stop) = driver(&args.state_dir)?;
    let proc_root = PathBuf::from("/proc");
    let peers = ProcPeerCheck {
        proc_root: proc_root.clone(),
    };
    let context = Context::new(workers.clone(), Box::new(peers));
    let sockets = Arc::new(Sockets::open(&args.state_dir, Arc::new(context))?);
    let host = AgentHost {
        killer: ProcKiller::new(proc_root),
        sockets: sockets.clone(),
    };
    let plugin = Plugin {
        workers: workers.clone(),
        sockets,
        agent,
    };

    let mut parts = JoinSet::new();
    parts.spawn(async move {
        driver.run(host).await;
        Ok(())
    });
    spawn(
        &mut parts,
        async move { nri::serve(&args.nri_socket, &plugin).await },
    );
    let stopper = workers.clone();
    let containerd = args.containerd_socket.clone();
    spawn(&mut parts, async move {
        stop::serve(&containerd, to_stop, &stopper).await
    });
    let followed = workers.clone();
    spawn(&mut parts, async move {
        events::serve(&args.containerd_socket, &followed).await
    });
    spawn(&mut parts, async move { hub_link::serve(&hub, &workers).await });

    tokio::select! {
        _ = terminate.recv() => info!("SIGTERM: the daemon exits, agents and workers keep running"),
        _ = interrupt.recv() => info!("SIGINT: the daemon exits, agents and workers keep running"),
        part = parts.join_next() => match part {
            Some(Err(error)) => bail!("a part of the daemon has failed: {error}"),
            Some(Ok(Err(error))) => bail!(error),
            Some(Ok(Ok(()))) | None => bail!("a part of the daemon has ended"),
        },
    }
    Ok(())
}

/// The driver with the state that earlier daemons left in `state_dir`, its handle, and the queue of
/// containers to stop.
fn driver(state_dir: &Path) -> anyhow::Result<(Driver, Handle, mpsc::Receiver<ContainerId>)> {
    let revision = uptime_nanos().context("cannot read the uptime")?;
    let journal = Files::open(state_dir).context("cannot store records")?;
    let records = journal
        .read()
        .context("cannot read the records of earlier daemons")?;
    let (stops, to_stop) = mpsc::channel(stop::QUEUE);
    let (driver, workers) = Driver::new(Table::new(revision));
    let driver = driver.with_plain(Plain {
        table: plain::state::Table::new(revision, records),
        journal: Box::new(journal),
        stops,
    });
    let epochs = EpochFile::new(state_dir);
    let highest = epochs.read().unwrap_or_else(|error| {
        // The file is replaced by renaming, so it was changed from outside. The next Welcome writes
        // a new one.
        warn!(%error, "cannot read the highest epoch of earlier daemons");
        Epoch::default()
    });
    Ok((driver.with_epochs(Box::new(epochs), highest), workers, to_stop))
}

fn spawn(
    parts: &mut JoinSet<Result<(), Closed>>,
    part: impl Future<Output = Result<(), Closed>> + Send + 'static,
) {
    parts.spawn(part);
}

fn boot_id() -> std::io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// Nanoseconds since the machine booted, in steps of 10 ms. This daemon's revisions start there.
fn uptime_nanos() -> anyhow::Result<u64> {
    let text = std::fs::read_to_string("/proc/uptime")?;
    parse_uptime(&text).with_context(|| format!("/proc/uptime holds {text:?}"))
}

fn parse_uptime(text: &str) -> Option<u64> {
    let (seconds, hundredths) = text.split_whitespace().next()?.split_once('.')?;
    let hundredths = seconds.parse::<u64>().ok()?.checked_mul(100)? + hundredths.parse::<u64>().ok()?;
    hundredths.checked_mul(10_000_000)
}

/// Carries out what the driver asks for on this node.
pub struct AgentHost {
    /// Kills processes that an agent may not kill.
    pub killer: ProcKiller,
    /// The pods' sockets.
    pub sockets: Arc<Sockets>,
}

impl Host for AgentHost {
    fn kill(&self, ask: HostKill) {
        self.killer.kill(ask);
    }

    fn spare(&self, container: &ContainerId) {
        self.killer.spare(container);
    }

    fn pod_known(&self, pod: &PodUid) {
        if let Err(error) = self.sockets.ensure(pod) {
            warn!(%pod, %error, "cannot listen for the agents of a pod");
        }
    }

    fn pod_gone(&self, pod: &PodUid) {
        self.sockets.remove(pod);
    }

    fn pods_listed(&self, pods: &BTreeSet<PodUid>) {
        self.sockets.listed(pods);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uptime_grows_in_hundredths() {
        assert_eq!(parse_uptime("350735.47 234388.90\n"), Some(350_735_470_000_000));
        assert_eq!(parse_uptime("0.05 0.00"), Some(50_000_000));
        assert_eq!(parse_uptime(""), None);
        assert!(uptime_nanos().unwrap() > 0);
    }
}
