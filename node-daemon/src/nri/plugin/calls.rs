//! The calls that NRI makes, and the plugin's answers.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use bytes::Bytes;
use lockstep_proto::nri::v1alpha1 as wire;
use prost::Message as _;
use tracing::{info, warn};

use super::{Plugin, slim};
use crate::nri::convert;
use crate::nri::inject::{self, Container, Decision, Paths};
use crate::worker::driver::Closed;
use crate::worker::facts::{Input, LiveContainer};
use crate::worker::types::{Pod, PodUid, SandboxId};

const EVENTS: [wire::Event; 4] = [
    wire::Event::RunPodSandbox,
    wire::Event::RemovePodSandbox,
    wire::Event::CreateContainer,
    wire::Event::RemoveContainer,
];

/// The parts of a snapshot that have arrived.
#[derive(Default)]
pub(super) struct Parts {
    pub(super) pods: Vec<wire::PodSandbox>,
    pub(super) containers: Vec<wire::Container>,
}

/// The answer to one call.
pub(super) enum Answer {
    Result(Bytes),
    Unknown,
}

impl Answer {
    fn of(message: &impl prost::Message) -> Self {
        Self::Result(message.encode_to_vec().into())
    }
}

/// Why a call cannot be answered.
#[derive(Debug, thiserror::Error)]
pub(super) enum CallError {
    #[error("malformed request: {0}")]
    Malformed(#[from] prost::DecodeError),
    #[error(transparent)]
    Closed(#[from] Closed),
    #[error(transparent)]
    TooOld(#[from] TooOld),
}

/// This containerd would ignore the agent's arguments, and start workers without it.
#[derive(Debug, thiserror::Error)]
#[error(
    "containerd {0} is too old: its NRI cannot change the arguments of a container, which 2.2 and later can"
)]
pub struct TooOld(String);

/// Longest version that is shown, in characters.
const MAX_VERSION: usize = 64;
/// The oldest containerd whose NRI (0.10) changes arguments: `ContainerAdjustment.args`.
const OLDEST: (u32, u32) = (2, 2);

/// Checks the runtime's version. NRI names its own version only from 0.12 on.
fn check_version(runtime: &str, version: &str) -> Result<(), TooOld> {
    let mut parts = version.trim_start_matches('v').split('.');
    let mut number = || parts.next()?.parse::<u32>().ok();
    match (runtime, number(), number()) {
        ("containerd", Some(major), Some(minor)) if (major, minor) < OLDEST => {
            Err(TooOld(version.chars().take(MAX_VERSION).collect()))
        }
        _ => Ok(()),
    }
}

impl Plugin {
    /// Answers one call.
    pub(super) async fn call(
        &self,
        method: &str,
        payload: Bytes,
        parts: &mut Parts,
    ) -> Result<Answer, CallError> {
        match method {
            "Configure" => {
                let request = wire::ConfigureRequest::decode(payload)?;
                info!(
                    runtime = request.runtime_name,
                    version = request.runtime_version,
                    nri = request.nri_version,
                    "NRI configures the plugin"
                );
                check_version(&request.runtime_name, &request.runtime_version)?;
                let events = EVENTS
                    .iter()
                    .fold(0, |mask, event| mask | 1 << (*event as i32 - 1));
                Ok(Answer::of(&wire::ConfigureResponse { events }))
            }
            "Synchronize" => {
                let request = wire::SynchronizeRequest::decode(payload)?;
                parts.pods.extend(request.pods.into_iter().map(slim::pod));
                parts
                    .containers
                    .extend(request.containers.into_iter().map(slim::container));
                if !request.more {
                    self.synchronize(std::mem::take(parts)).await?;
                }
                Ok(Answer::of(&wire::SynchronizeResponse {
                    update: Vec::new(),
                    more: request.more,
                }))
            }
            "RunPodSandbox" => {
                let request = wire::RunPodSandboxRequest::decode(payload)?;
                self.pod_started(request.pod).await?;
                Ok(Answer::of(&wire::RunPodSandboxResponse {}))
            }
            "RemovePodSandbox" => {
                let request = wire::RemovePodSandboxRequest::decode(payload)?;
                self.pod_removed(request.pod).await?;
                Ok(Answer::of(&wire::RemovePodSandboxResponse {}))
            }
            "CreateContainer" => {
                let request = wire::CreateContainerRequest::decode(payload)?;
                let adjust = self.create(request).await?;
                Ok(Answer::of(&wire::CreateContainerResponse {
                    adjust,
                    ..wire::CreateContainerResponse::default()
                }))
            }
            "RemoveContainer" => {
                let request = wire::RemoveContainerRequest::decode(payload)?;
                self.removed(request.container).await?;
                Ok(Answer::of(&wire::RemoveContainerResponse {}))
            }
            // containerd before 2.2 reports here what has separate methods in later versions.
            "StateChange" => {
                let request = wire::StateChangeEvent::decode(payload)?;
                match request.event() {
                    wire::Event::RunPodSandbox => self.pod_started(request.pod).await?,
                    wire::Event::RemovePodSandbox => self.pod_removed(request.pod).await?,
                    wire::Event::RemoveContainer => self.removed(request.container).await?,
                    _ => {}
                }
                Ok(Answer::of(&wire::Empty {}))
            }
            "Shutdown" => {
                info!("NRI shuts down");
                Ok(Answer::of(&wire::Empty {}))
            }
            _ => Ok(Answer::Unknown),
        }
    }

    async fn synchronize(&self, parts: Parts) -> Result<(), Closed> {
        // NRI names all containers: it waits for those just being created (containerd since 2.0.3).
        self.prune(&parts.containers.iter().filter_map(convert::agent_dir).collect());
        let mut pods: BTreeMap<SandboxId, Pod> = parts
            .pods
            .into_iter()
            .filter_map(|sandbox| Some((SandboxId::from(sandbox.id.as_str()), recognised(&sandbox)?)))
            .collect();
        let containers = parts.containers.into_iter().map(|container| {
            let sandbox = SandboxId::from(container.pod_sandbox_id.as_str());
            (sandbox, convert::container(container))
        });
        let containers: Vec<(SandboxId, Container)> = containers.collect();
        for (sandbox, container) in &containers {
            if pods
                .get(sandbox)
                .is_some_and(|pod| inject::makes_plain(pod, container))
            {
                pods.remove(sandbox);
            }
        }
        let containers: Vec<_> = containers
            .into_iter()
            .filter_map(|(sandbox, container)| {
                let pod = pods.get(&sandbox)?;
                // With or without an agent: a container that is left out would count as gone.
                let works = pod.supervised.contains(&container.name);
                works.then(|| LiveContainer {
                    pod: pod.uid.clone(),
                    without_agent: inject::misses_agent(pod, &container),
                    id: container.id,
                    name: container.name,
                })
            })
            .collect();
        info!(
            pods = pods.len(),
            workers = containers.len(),
            "synchronized with NRI"
        );
        let pods: Vec<(SandboxId, Pod)> = pods.into_iter().collect();
        let uids: BTreeSet<PodUid> = pods.iter().map(|(_, pod)| pod.uid.clone()).collect();
        self.workers
            .tell(Input::Synchronized { pods, containers })
            .await?;
        // The driver may still be removing sockets; new ones must come after that.
        self.workers.mark().await?;
        self.sockets.retain(&uids);
        self.workers.health().nri(Ok(()));
        for uid in &uids {
            if let Err(error) = self.sockets.ensure(uid) {
                warn!(pod = %uid, %error, "cannot listen for the agents of a pod");
            }
        }
        Ok(())
    }

    fn prune(&self, used: &BTreeSet<PathBuf>) {
        for removed in self.agent.prune(used) {
            match removed {
                Ok(dir) => {
                    info!(dir = %dir.display(), "removed an agent of another version that no container uses")
                }
                Err(error) => warn!(%error, "cannot remove an agent of another version"),
            }
        }
    }

    async fn pod_started(&self, sandbox: Option<wire::PodSandbox>) -> Result<(), Closed> {
        if let Some(sandbox) = sandbox
            && let Some(pod) = recognised(&sandbox)
        {
            self.workers
                .tell(Input::PodStarted(sandbox.id.into(), pod))
                .await?;
        }
        Ok(())
    }

    async fn pod_removed(&self, sandbox: Option<wire::PodSandbox>) -> Result<(), Closed> {
        match sandbox {
            Some(sandbox) => {
                let removed = Input::PodRemoved(sandbox.id.into(), sandbox.uid.into());
                self.workers.tell(removed).await
            }
            None => Ok(()),
        }
    }

    async fn removed(&self, container: Option<wire::Container>) -> Result<(), Closed> {
        match container {
            Some(container) => self.workers.tell(Input::Removed(container.id.into())).await,
            None => Ok(()),
        }
    }

    async fn create(
        &self,
        request: wire::CreateContainerRequest,
    ) -> Result<Option<wire::ContainerAdjustment>, Closed> {
        let (Some(sandbox), Some(container)) = (request.pod, request.container) else {
            return Ok(None);
        };
        let Some(pod) = recognised(&sandbox) else {
            return Ok(None);
        };
        let container = convert::container(container);
        let decision = inject::decide(&pod, &container);
        if decision == Decision::NotOurs {
            return Ok(None);
        }
        if inject::makes_plain(&pod, &container) {
            let (pod, uid, name) = (&pod.name, pod.uid, &container.name);
            warn!(
                pod,
                container = name,
                "the worker gets no agent because it shares a pid namespace (hostPID or shareProcessNamespace): the event RestartNotSupervised says how its group restarts"
            );
            // The listing through CRI shows it as a pod without agents.
            self.workers
                .tell(Input::PodRemoved(sandbox.id.into(), uid))
                .await?;
            return Ok(None);
        }
        // Announced with or without an agent: its end is evidence in both cases.
        self.announce(sandbox.id.into(), &pod, &container).await?;
        let (name, uid) = (&container.name, &pod.uid);
        if let Decision::Refuse(reason) = decision {
            warn!(
                pod = pod.name,
                container = name,
                reason,
                "the worker starts without an agent"
            );
            return Ok(None);
        }
        let run = match self.sockets.ensure(uid) {
            Ok(run) => run,
            Err(error) => {
                warn!(pod = pod.name, container = name, %error, "the worker starts without a socket for its agent");
                return Ok(None);
            }
        };
        if decision == Decision::Already {
            return Ok(None);
        }
        info!(pod = pod.name, container = name, id = %container.id, standby = ?pod.standby, "agent injected");
        let bin = self.agent.dir.clone();
        let adjustment = inject::adjustment(&pod, &container, Paths { bin, run });
        Ok(Some(convert::adjustment(adjustment)))
    }

    /// Makes the driver take in this container and all facts before it, so that sockets of earlier
    /// sandboxes are removed.
    async fn announce(&self, sandbox: SandboxId, pod: &Pod, container: &Container) -> Result<(), Closed> {
        self.workers.tell(Input::PodStarted(sandbox, pod.clone())).await?;
        let created = Input::Created {
            pod: pod.uid.clone(),
            id: container.id.clone(),
            name: container.name.clone(),
        };
        self.workers.tell(created).await?;
        self.workers.mark().await?;
        Ok(())
    }
}

pub(super) fn recognised(sandbox: &wire::PodSandbox) -> Option<Pod> {
    match convert::pod(sandbox) {
        Ok(pod) => pod,
        Err(error) => {
            warn!(pod = sandbox.name, namespace = sandbox.namespace, %error, "pod is not supervised");
            None
        }
    }
}
