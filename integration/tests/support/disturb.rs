//! Disturbances of the programs under and beside the workers, other than kills: pauses, restarts
//! and broken connections.

use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use lockstep_integration::harness::{Process, eventually};
use nix::sys::signal::Signal;
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpStream, UnixStream};
use tokio::process::Command;
use tokio::time::timeout;

use super::product::{Part, Product, READY};

/// The port of the hub, as in the chart.
const HUB: u16 = 9444;
/// The port of the kubelet.
const KUBELET: u16 = 10250;
/// How long a daemon may take to accept a connection before the test tries again.
const ACCEPTED: Duration = Duration::from_secs(2);
/// Drops the hub's traffic in both directions, as a broken network does.
const LOSE: &str = "
table inet lost {
  chain in { type filter hook input priority 0; FROM tcp dport PORT drop; }
  chain out { type filter hook output priority 0; TO tcp sport PORT drop; }
}";

/// A program of the cluster that is not part of the product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Daemon {
    /// Of this node, counted from 1.
    Containerd(u8),
    /// Of this node.
    Kubelet(u8),
    ApiServer,
}

impl Daemon {
    fn name(self) -> String {
        match self {
            Self::Containerd(node) => format!("containerd-{node}"),
            Self::Kubelet(node) => format!("kubelet-{node}"),
            Self::ApiServer => "kube-apiserver".to_owned(),
        }
    }
}

/// A process that is stopped until this is dropped.
pub(crate) struct Paused(Process);

impl Paused {
    pub(crate) fn new(process: Process) -> Result<Self> {
        process.signal(Signal::SIGSTOP)?;
        Ok(Self(process))
    }
}

impl Drop for Paused {
    fn drop(&mut self) {
        // The process may have been killed meanwhile.
        let _ = self.0.signal(Signal::SIGCONT);
    }
}

impl Product {
    /// The process of a daemon of the cluster.
    pub(crate) async fn daemon(&self, daemon: Daemon) -> Result<Process> {
        let name = daemon.name();
        self.with_cluster(async |cluster| {
            let recorded = cluster.daemon(&name).with_context(|| format!("no {name}"))?;
            Process::find(recorded.pid).with_context(|| format!("{name} does not run"))
        })
        .await
    }

    /// Kills a daemon and starts it again as it was.
    pub(crate) async fn restart(&self, daemon: Daemon) -> Result<Vec<OsString>> {
        self.with_cluster(async |cluster| Ok(cluster.restart_daemon(&daemon.name()).await?))
            .await
    }

    /// Kills a node's kubelet and starts it again as it was, as often as necessary: if containerd
    /// does not answer, the kubelet ends by itself.
    pub(crate) async fn restart_kubelet(&self, node: u8) -> Result<()> {
        let daemon = Daemon::Kubelet(node);
        let args = self.restart(daemon).await?;
        eventually("kubelet serves", READY, async || {
            let address = self
                .with_cluster(async |cluster| {
                    cluster.keep_up(&daemon.name(), &args).await?;
                    Ok(cluster.network()?.node(node))
                })
                .await?;
            timeout(ACCEPTED, TcpStream::connect((address, KUBELET))).await??;
            Ok(())
        })
        .await
    }

    /// Kills a node's containerd, which cuts NRI and the CRI, and starts it again as it was.
    pub(crate) async fn restart_containerd(&self, node: u8) -> Result<()> {
        self.restart(Daemon::Containerd(node)).await?;
        let socket = self.node_path(node, "/run/containerd/containerd.sock").await?;
        eventually("containerd listens", READY, async || {
            timeout(ACCEPTED, UnixStream::connect(&socket)).await??;
            Ok(())
        })
        .await
    }

    /// Resets the connections between the hub and this node's daemon, or all daemons: both ends
    /// notice.
    pub(crate) async fn cut_hub(&self, node: Option<u8>) -> Result<()> {
        eventually("a connection to the hub is cut", READY, async || {
            let port = format!(":{HUB}");
            let mut args = vec![
                "-K",
                "-H",
                "-t",
                "-n",
                "state",
                "established",
                "sport",
                "=",
                &port,
            ];
            let address = self.daemon_address(node).await?;
            if let Some(address) = &address {
                args.extend(["and", "dst", address]);
            }
            let cut = self.beside_the_hub("ss", &args, "").await?;
            ensure!(!cut.trim().is_empty(), "there is none");
            Ok(())
        })
        .await
    }

    /// The metrics of the replica that leads, as its own pod reads them.
    pub(crate) async fn metrics(&self) -> Result<String> {
        self.beside_the_hub("curl", &["-sS", "-f", "http://127.0.0.1:8443/metrics"], "")
            .await
    }

    /// Drops all traffic between the hub and this node's daemon, or all daemons, for a while:
    /// neither end notices.
    pub(crate) async fn partition_hub(&self, node: Option<u8>, lasting: Duration) -> Result<()> {
        self.part_hub(node).await?;
        tokio::time::sleep(lasting).await;
        self.join_hub().await
    }

    /// Drops all traffic between the hub and this node's daemon, or all daemons, from now on.
    pub(crate) async fn part_hub(&self, node: Option<u8>) -> Result<()> {
        // The control plane may be down now or later, but its network is not.
        eventually("the network is broken", READY, async || {
            let (from, to) = match self.daemon_address(node).await? {
                Some(address) => (format!("ip saddr {address}"), format!("ip daddr {address}")),
                None => (String::new(), String::new()),
            };
            let rules = LOSE
                .replace("PORT", &HUB.to_string())
                .replace("FROM", &from)
                .replace("TO", &to);
            self.beside_the_hub("nft", &["-f", "-"], &rules).await
        })
        .await?;
        Ok(())
    }

    /// Ends the effect of [`Self::part_hub`].
    pub(crate) async fn join_hub(&self) -> Result<()> {
        eventually("the network is whole again", READY, async || {
            self.beside_the_hub("nft", &["delete", "table", "inet", "lost"], "")
                .await
        })
        .await?;
        Ok(())
    }

    async fn daemon_address(&self, node: Option<u8>) -> Result<Option<String>> {
        match node {
            Some(node) => Ok(Some(self.address(Part::NodeDaemon(node)).await?)),
            None => Ok(None),
        }
    }

    /// Runs a program of this machine in the control plane's network.
    async fn beside_the_hub(&self, program: &str, args: &[&str], input: &str) -> Result<String> {
        let hub = self.process(Part::ControlPlane).await?;
        let mut child = Command::new("nsenter")
            .args(["--target", &hub.pid.to_string(), "--net", "--", program])
            .args(args)
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            stdin.write_all(input.as_bytes()).await?;
        }
        let output = child.wait_with_output().await?;
        if !output.status.success() {
            bail!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }
}
