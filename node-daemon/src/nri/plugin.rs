//! One connection to NRI.
//!
//! ```text
//! connect ──RegisterPlugin──> Configure ──> Synchronize ──> CreateContainer, RunPodSandbox, RemoveContainer, RemovePodSandbox …
//! ```
//!
//! containerd serialises its calls over all pods and drops a plugin that takes longer than 2 s, so every answer comes from memory and calls are
//! answered one by one, in order. A lost connection costs nothing but the injection of what is created meanwhile: Synchronize tells the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use lockstep_proto::nri::v1alpha1 as wire;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::UnixStream;
use tracing::{debug, info, warn};

use super::inject::{self, Container, Decision, Paths};
use super::ttrpc::{self, Kind, Request, Response};
use super::{convert, mux};
use crate::agents::sockets::Sockets;
use crate::install::Installed;
use crate::worker::driver::{Closed, Handle};
use crate::worker::facts::{Input, Present};
use crate::worker::types::{Pod, PodUid, SandboxId};

const NAME: &str = "lockstep";
const INDEX: &str = "10";
const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// Stream of the one call that the plugin makes.
const REGISTER: u32 = 1;
/// Time for a write, and for the rest of a message: NRI has hung when it takes longer.
const PATIENCE: Duration = Duration::from_secs(5);

const EVENTS: [wire::Event; 4] = [
    wire::Event::RunPodSandbox,
    wire::Event::RemovePodSandbox,
    wire::Event::CreateContainer,
    wire::Event::RemoveContainer,
];

/// Why a connection ended.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// Read or write failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Not the multiplexer's protocol.
    #[error(transparent)]
    Mux(#[from] mux::TooLarge),
    /// Not ttrpc.
    #[error(transparent)]
    Ttrpc(#[from] ttrpc::TooLarge),
    /// The answer to RegisterPlugin is none.
    #[error("malformed answer: {0}")]
    Malformed(#[from] prost::DecodeError),
    /// NRI does not take the plugin.
    #[error("NRI refuses the plugin: {0}")]
    Refused(String),
    /// NRI reads no more.
    #[error("NRI takes no answers")]
    Stuck,
    /// The rest of a message does not come.
    #[error("NRI has stopped in the middle of a message")]
    CutShort,
    /// The daemon is going down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// The plugin: what it needs to answer.
pub struct Plugin {
    /// The way to the table of workers.
    pub workers: Handle,
    /// The pods' sockets.
    pub sockets: Arc<Sockets>,
    /// The agent binary on the host.
    pub agent: Installed,
}

/// What has arrived of a snapshot that comes in parts.
#[derive(Default)]
struct Parts {
    pods: Vec<wire::PodSandbox>,
    containers: Vec<wire::Container>,
}

/// What is answered to one call.
enum Answer {
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
enum CallError {
    #[error("malformed request: {0}")]
    Malformed(#[from] prost::DecodeError),
    #[error(transparent)]
    Closed(#[from] Closed),
}

impl Plugin {
    /// Serves one connection to its end.
    ///
    /// # Errors
    /// When it ends other than by containerd's closing it.
    pub async fn serve(&self, mut stream: UnixStream) -> Result<(), PluginError> {
        let mut input = BytesMut::with_capacity(64 * 1024);
        let mut calls = BytesMut::new();
        let mut answers = BytesMut::new();
        let mut parts = Parts::default();
        send(&mut stream, mux::RUNTIME, &register()?).await?;
        loop {
            let begun = !(input.is_empty() && calls.is_empty() && answers.is_empty());
            let read = stream.read_buf(&mut input);
            let size = if begun {
                tokio::time::timeout(PATIENCE, read)
                    .await
                    .map_err(|_| PluginError::CutShort)?
            } else {
                read.await
            };
            if size? == 0 {
                return Ok(());
            }
            while let Some((connection, bytes)) = mux::decode(&mut input)? {
                match connection {
                    mux::PLUGIN => calls.extend_from_slice(&bytes),
                    mux::RUNTIME => answers.extend_from_slice(&bytes),
                    _ => debug!(connection, "bytes on an unknown NRI connection"),
                }
            }
            while let Some(message) = ttrpc::decode(&mut answers)? {
                if message.kind == Kind::Response && message.stream == REGISTER {
                    registered(&Response::decode(message.payload)?)?;
                }
            }
            while let Some(message) = ttrpc::decode(&mut calls)? {
                if message.kind == Kind::Request {
                    let response = self.respond(message.payload, &mut parts).await?;
                    send(
                        &mut stream,
                        mux::PLUGIN,
                        &ttrpc::response(message.stream, &response)?,
                    )
                    .await?;
                }
            }
        }
    }

    async fn respond(&self, payload: Bytes, parts: &mut Parts) -> Result<Response, PluginError> {
        let begun = Instant::now();
        let request = match Request::decode(payload) {
            Ok(request) => request,
            Err(error) => return Ok(Response::error(ttrpc::INVALID_ARGUMENT, error.to_string())),
        };
        let answer = if request.service == PLUGIN_SERVICE {
            self.call(&request.method, request.payload, parts).await
        } else {
            Ok(Answer::Unknown)
        };
        debug!(
            method = request.method,
            micros = begun.elapsed().as_micros(),
            "NRI call"
        );
        match answer {
            Ok(Answer::Result(payload)) => Ok(Response::ok(payload)),
            Ok(Answer::Unknown) => Ok(Response::error(
                ttrpc::UNIMPLEMENTED,
                format!("{}/{} is not implemented", request.service, request.method),
            )),
            Err(CallError::Malformed(error)) => Ok(Response::error(
                ttrpc::INVALID_ARGUMENT,
                format!("{}: {error}", request.method),
            )),
            Err(CallError::Closed(closed)) => Err(closed.into()),
        }
    }

    async fn call(&self, method: &str, payload: Bytes, parts: &mut Parts) -> Result<Answer, CallError> {
        match method {
            "Configure" => {
                let request = wire::ConfigureRequest::decode(payload)?;
                info!(
                    runtime = request.runtime_name,
                    version = request.runtime_version,
                    nri = request.nri_version,
                    "NRI configures the plugin"
                );
                let events = EVENTS
                    .iter()
                    .fold(0, |mask, event| mask | 1 << (*event as i32 - 1));
                Ok(Answer::of(&wire::ConfigureResponse { events }))
            }
            "Synchronize" => {
                let request = wire::SynchronizeRequest::decode(payload)?;
                parts.pods.extend(request.pods);
                parts.containers.extend(request.containers);
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
            // How containerd before 2.2 tells what has a method of its own since.
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
        // NRI tells of all containers: it waits for those that are just being created (containerd since 2.0.3).
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
                // With an agent or without: one that was left out would be taken for gone.
                let works = pod.supervised.contains(&container.name);
                works.then(|| Present {
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
        // The driver may still be removing sockets; what is made now must come after.
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
                    info!(dir = %dir.display(), "agent of another version removed: no container has it")
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
                "the worker gets no agent, it shares a pid namespace (hostPID or shareProcessNamespace): the event RestartNotSupervised says how its group restarts"
            );
            // Whoever lists through CRI knows it as one without agents.
            self.workers
                .tell(Input::PodRemoved(sandbox.id.into(), uid))
                .await?;
            return Ok(None);
        }
        // Known with an agent or without: its end is evidence all the same.
        self.made_known(sandbox.id.into(), &pod, &container).await?;
        let (pod, name, uid) = (&pod.name, &container.name, &pod.uid);
        if let Decision::Refuse(reason) = decision {
            warn!(
                pod,
                container = name,
                reason,
                "the worker starts without an agent"
            );
            return Ok(None);
        }
        let run = match self.sockets.ensure(uid) {
            Ok(run) => run,
            Err(error) => {
                warn!(pod, container = name, %error, "the worker starts without a socket for its agent");
                return Ok(None);
            }
        };
        if decision == Decision::Already {
            return Ok(None);
        }
        info!(pod, container = name, id = %container.id, "agent injected");
        let bin = self.agent.dir.clone();
        let adjustment = inject::adjustment(&container, Paths { bin, run });
        Ok(Some(convert::adjustment(adjustment)))
    }

    /// Has the driver take in this container, and everything that came before it: sockets of earlier sandboxes that it removes are gone.
    async fn made_known(&self, sandbox: SandboxId, pod: &Pod, container: &Container) -> Result<(), Closed> {
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

fn recognised(sandbox: &wire::PodSandbox) -> Option<Pod> {
    match convert::pod(sandbox) {
        Ok(pod) => pod,
        Err(error) => {
            warn!(pod = sandbox.name, namespace = sandbox.namespace, %error, "pod is not supervised");
            None
        }
    }
}

fn register() -> Result<BytesMut, ttrpc::TooLarge> {
    let argument = wire::RegisterPluginRequest {
        plugin_name: NAME.to_owned(),
        plugin_idx: INDEX.to_owned(),
        nri_version: String::new(),
    };
    let call = Request {
        service: RUNTIME_SERVICE.to_owned(),
        method: "RegisterPlugin".to_owned(),
        payload: argument.encode_to_vec().into(),
        timeout_nano: 0,
    };
    ttrpc::request(REGISTER, &call)
}

fn registered(response: &Response) -> Result<(), PluginError> {
    match &response.status {
        Some(status) if status.code != 0 => Err(PluginError::Refused(status.message.clone())),
        _ => {
            info!("registered with NRI");
            Ok(())
        }
    }
}

async fn send(stream: &mut UnixStream, connection: u32, message: &[u8]) -> Result<(), PluginError> {
    let mut out = BytesMut::new();
    mux::encode(connection, message, &mut out);
    tokio::time::timeout(PATIENCE, stream.write_all(&out))
        .await
        .map_err(|_| PluginError::Stuck)??;
    Ok(())
}

#[cfg(test)]
mod tests;
