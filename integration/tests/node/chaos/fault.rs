//! The faults, and how the test injects them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::{Group, Process, Worker, eventually};
use nix::sys::signal::Signal;

use super::plan::Blow;
use crate::support::{Daemon, Part, Paused, Product, Scene};

/// How long a killed process may take to end.
const END: Duration = Duration::from_secs(10);

/// A fault. A kill is SIGKILL; a pause is SIGSTOP, and SIGCONT after a while. A program that runs
/// on every node fails on the node of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    KillControlPlane,
    PauseControlPlane,
    KillNodeDaemon,
    PauseNodeDaemon,
    /// Ends the container, which the kubelet starts again.
    KillAgent,
    PauseAgent,
    /// Deletes a pod, as a user of kubectl does.
    DeletePod,
    KillContainerd,
    PauseContainerd,
    KillKubelet,
    PauseKubelet,
    PauseApiServer,
    /// The connections between hub and node daemon are reset.
    CutHub,
    /// What hub and node daemon send each other is lost for a while.
    PartitionHub,
}

/// What a fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Struck {
    ControlPlane,
    NodeDaemon,
    Worker,
    Containerd,
    Kubelet,
    ApiServer,
    Hub,
}

impl Fault {
    pub(super) const ALL: [Self; 14] = [
        Self::KillControlPlane,
        Self::PauseControlPlane,
        Self::KillNodeDaemon,
        Self::PauseNodeDaemon,
        Self::KillAgent,
        Self::PauseAgent,
        Self::DeletePod,
        Self::KillContainerd,
        Self::PauseContainerd,
        Self::KillKubelet,
        Self::PauseKubelet,
        Self::PauseApiServer,
        Self::CutHub,
        Self::PartitionHub,
    ];

    pub(super) fn strikes(self) -> Struck {
        match self {
            Self::KillControlPlane | Self::PauseControlPlane => Struck::ControlPlane,
            Self::KillNodeDaemon | Self::PauseNodeDaemon => Struck::NodeDaemon,
            Self::KillAgent | Self::PauseAgent | Self::DeletePod => Struck::Worker,
            Self::KillContainerd | Self::PauseContainerd => Struck::Containerd,
            Self::KillKubelet | Self::PauseKubelet => Struck::Kubelet,
            Self::PauseApiServer => Struck::ApiServer,
            Self::CutHub | Self::PartitionHub => Struck::Hub,
        }
    }

    fn kills(self) -> bool {
        matches!(
            self,
            Self::KillControlPlane
                | Self::KillNodeDaemon
                | Self::KillAgent
                | Self::KillContainerd
                | Self::KillKubelet
        )
    }

    /// True if it concerns a worker, or the node of that worker.
    pub(super) fn is_somewhere(self) -> bool {
        !matches!(self.strikes(), Struck::ControlPlane | Struck::ApiServer)
    }

    /// True if it lasts for a while.
    pub(super) fn lasts(self) -> bool {
        !self.kills() && !matches!(self, Self::DeletePod | Self::CutHub)
    }
}

/// A fault that is ready to be injected: everything that it needs has been looked up.
pub(super) enum Armed {
    Kill(Process),
    Pause(Process, Duration),
    Restart(Daemon),
    Delete(String),
    /// The daemon's node, or `None` for all.
    Cut(Option<u8>),
    Partition(Option<u8>, Duration),
}

/// A fault, and the place of the group that it changes.
pub(super) struct Loaded {
    pub(super) armed: Armed,
    /// The worker that gets another container, in the same pod or in another one.
    pub(super) moves: Option<Move>,
}

/// How a fault changes a worker's place.
#[derive(Debug, Clone, Copy)]
pub(super) enum Move {
    Container(usize),
    Pod(usize),
}

/// Prepares a fault. The kubelet delays a container that ends for the second time, so no container
/// is killed twice.
pub(super) async fn load(scene: &Scene, blow: &Blow, workers: &[Worker]) -> Result<Loaded> {
    let product = &scene.product;
    let worker = workers.get(blow.target).context("no such worker")?;
    let node = product.node_of(&worker.place)?;
    // With one node, all connections belong to it.
    let daemons = (product.nodes() > 1).then_some(node);
    let (armed, moves) = match blow.fault.strikes() {
        Struck::ControlPlane => (of_part(blow, product, Part::ControlPlane).await?, None),
        Struck::NodeDaemon => (of_part(blow, product, Part::NodeDaemon(node)).await?, None),
        Struck::Containerd => (of_daemon(blow, product, Daemon::Containerd(node)).await?, None),
        Struck::Kubelet => (of_daemon(blow, product, Daemon::Kubelet(node)).await?, None),
        Struck::ApiServer => (of_daemon(blow, product, Daemon::ApiServer).await?, None),
        Struck::Hub if blow.fault.lasts() => (Armed::Partition(daemons, blow.lasting), None),
        Struck::Hub => (Armed::Cut(daemons), None),
        Struck::Worker => match blow.fault {
            Fault::PauseAgent => (process(blow, worker.agent), None),
            Fault::KillAgent if worker.place.restarts == 0 => {
                (process(blow, worker.agent), Some(Move::Container(blow.target)))
            }
            _ => (
                Armed::Delete(worker.place.pod.clone()),
                Some(Move::Pod(blow.target)),
            ),
        },
    };
    Ok(Loaded { armed, moves })
}

async fn of_part(blow: &Blow, product: &Product, part: Part) -> Result<Armed> {
    if blow.fault.kills() {
        product.fresh(part).await?;
    }
    Ok(process(blow, product.process(part).await?))
}

async fn of_daemon(blow: &Blow, product: &Product, daemon: Daemon) -> Result<Armed> {
    if blow.fault.kills() {
        return Ok(Armed::Restart(daemon));
    }
    Ok(process(blow, product.daemon(daemon).await?))
}

fn process(blow: &Blow, process: Process) -> Armed {
    if blow.fault.kills() {
        Armed::Kill(process)
    } else {
        Armed::Pause(process, blow.lasting)
    }
}

impl Armed {
    /// Injects the fault, and returns when it is over.
    pub(super) async fn strike(self, product: &Product, group: &Group) -> Result<()> {
        match self {
            Self::Kill(process) => {
                process.signal(Signal::SIGKILL)?;
                eventually("a killed process ends", END, async || {
                    ensure!(!process.is_alive(), "{process:?} lives");
                    Ok(())
                })
                .await
            }
            Self::Pause(process, lasting) => {
                let _paused = Paused::new(process)?;
                tokio::time::sleep(lasting).await;
                Ok(())
            }
            Self::Restart(Daemon::Containerd(node)) => product.restart_containerd(node).await,
            Self::Restart(Daemon::Kubelet(node)) => product.restart_kubelet(node).await,
            Self::Restart(daemon) => product.restart(daemon).await.map(drop),
            Self::Delete(pod) => {
                group
                    .namespace
                    .kubectl(&["delete", "pod", &pod, "--wait=false"])
                    .await?;
                Ok(())
            }
            Self::Cut(node) => product.cut_hub(node).await,
            Self::Partition(node, lasting) => product.partition_hub(node, lasting).await,
        }
    }
}
