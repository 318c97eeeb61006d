//! What can fail, and how it is made to.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use lockstep_integration::harness::{Group, Process, Worker, eventually};
use nix::sys::signal::Signal;

use super::plan::Blow;
use crate::support::{Daemon, Part, Paused, Product, Scene};

/// How long a killed process may take to end.
const END: Duration = Duration::from_secs(10);

/// A fault. Kills are SIGKILL; a pause is SIGSTOP, and SIGCONT after a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    KillControlPlane,
    PauseControlPlane,
    KillNodeDaemon,
    PauseNodeDaemon,
    /// Ends the container, which kubelet starts again.
    KillAgent,
    PauseAgent,
    /// Deletes a pod, as somebody with kubectl does.
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
    Part(Part),
    Daemon(Daemon),
    Worker,
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
            Self::KillControlPlane | Self::PauseControlPlane => Struck::Part(Part::ControlPlane),
            Self::KillNodeDaemon | Self::PauseNodeDaemon => Struck::Part(Part::NodeDaemon(1)),
            Self::KillAgent | Self::PauseAgent | Self::DeletePod => Struck::Worker,
            Self::KillContainerd | Self::PauseContainerd => Struck::Daemon(Daemon::Containerd),
            Self::KillKubelet | Self::PauseKubelet => Struck::Daemon(Daemon::Kubelet),
            Self::PauseApiServer => Struck::Daemon(Daemon::ApiServer),
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

    /// Whether it is over only after a while.
    pub(super) fn lasts(self) -> bool {
        !self.kills() && !matches!(self, Self::DeletePod | Self::CutHub)
    }
}

/// A fault that has only to be let loose: what it needs to know has been looked up.
pub(super) enum Armed {
    Kill(Process),
    Pause(Process, Duration),
    Restart(Daemon),
    Delete(String),
    Cut,
    Partition(Duration),
}

/// A fault, and the place of the group that it changes.
pub(super) struct Loaded {
    pub(super) armed: Armed,
    /// The worker that gets another container, with the worker's pod as it was or with another one.
    pub(super) moves: Option<Move>,
}

/// What becomes of a worker's place.
#[derive(Debug, Clone, Copy)]
pub(super) enum Move {
    Container(usize),
    Pod(usize),
}

/// Prepares a fault. Kubelet makes a container wait that ends for the second time, so no container is killed twice.
pub(super) async fn load(scene: &Scene, blow: &Blow, workers: &[Worker]) -> Result<Loaded> {
    let product = &scene.product;
    if let (Struck::Part(part), true) = (blow.fault.strikes(), blow.fault.kills()) {
        product.fresh(part).await?;
    }
    let (armed, moves) = match blow.fault.strikes() {
        Struck::Part(part) => (process(blow, product.process(part).await?), None),
        Struck::Daemon(daemon) if blow.fault.kills() => (Armed::Restart(daemon), None),
        Struck::Daemon(daemon) => (process(blow, product.daemon(daemon).await?), None),
        Struck::Hub if blow.fault.lasts() => (Armed::Partition(blow.lasting), None),
        Struck::Hub => (Armed::Cut, None),
        Struck::Worker => {
            let worker = workers.get(blow.target).context("no such worker")?;
            match blow.fault {
                Fault::PauseAgent => (process(blow, worker.agent), None),
                Fault::KillAgent if worker.place.restarts == 0 => {
                    (process(blow, worker.agent), Some(Move::Container(blow.target)))
                }
                _ => (
                    Armed::Delete(worker.place.pod.clone()),
                    Some(Move::Pod(blow.target)),
                ),
            }
        }
    };
    Ok(Loaded { armed, moves })
}

fn process(blow: &Blow, process: Process) -> Armed {
    if blow.fault.kills() {
        Armed::Kill(process)
    } else {
        Armed::Pause(process, blow.lasting)
    }
}

impl Armed {
    /// Lets it loose, and returns when it is over.
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
            Self::Restart(Daemon::Containerd) => product.restart_containerd().await,
            Self::Restart(daemon) => product.restart(daemon).await,
            Self::Delete(pod) => {
                group
                    .namespace
                    .kubectl(&["delete", "pod", &pod, "--wait=false"])
                    .await?;
                Ok(())
            }
            Self::Cut => product.cut_hub(None).await,
            Self::Partition(lasting) => product.partition_hub(lasting).await,
        }
    }
}
