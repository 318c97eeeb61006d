//! Calls to containerd through CRI: list pods and containers with their exits, and kill containers.

pub mod convert;
mod verbose;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use lockstep_proto::cri::v1 as wire;
use lockstep_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use lockstep_protocol::pods::is_sandboxed;
use tokio::net::UnixStream;
use tokio::sync::Mutex;
use tonic::transport::{Channel, Uri};
use tower::Service;
use tracing::{debug, info, warn};

use crate::nri::inject;
use crate::plain::facts::PlainContainer;
use crate::pods::InPlacePod;
use crate::worker::facts::{ListedContainer, LiveContainer};
use crate::worker::types::{ContainerId, Pod, PodUid, SandboxId, UnixNanos};

/// Limit for one call: a containerd that takes longer hangs.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// The pods with workers of this node, and their worker containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Every sandbox of such a pod.
    pub pods: Vec<(SandboxId, Pod)>,
    /// Every worker container of `pods`, ended or not.
    pub containers: Vec<ListedContainer>,
    /// Every sandbox of a pod whose workers have no agent: the pod is marked like that, or can have
    /// none.
    pub plain_pods: BTreeMap<SandboxId, Pod>,
    /// Every worker container of `plain_pods`, ended or not.
    pub plain: Vec<PlainContainer>,
    /// Those of `containers` that live and lack the agent that they could have. Empty unless NRI is
    /// away.
    pub without_agents: Vec<LiveContainer>,
    /// Containers whose exit containerd does not report, and why. They are listed as if they had
    /// not ended, so their last known state stays.
    pub unclear: BTreeMap<ContainerId, String>,
}

/// Facts about sandboxes and containers that do not change while they live.
#[derive(Debug, Default)]
pub struct ListingCache {
    /// True if no container of the sandbox can have an agent.
    sandboxes: BTreeMap<SandboxId, bool>,
    /// True if the container was created without the agent that it could have.
    containers: BTreeMap<ContainerId, bool>,
    /// Sandboxes of pods that ask for supervision but cannot have it, and were logged.
    reported_odd: BTreeSet<SandboxId>,
}

/// Largest answer that is accepted from containerd, in bytes. It is the kubelet's own limit
/// (`pkg/kubelet/cri/remote`, `maxMsgSize`): on a node whose pods have more annotations than that,
/// the kubelet does not work either.
const MAX_ANSWER: usize = 16 << 20;

fn client(channel: &Channel) -> RuntimeServiceClient<Channel> {
    RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER)
}

/// Where the daemon learns which containers lack the agent that they could have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentSource {
    /// NRI shows how all containers were created.
    Nri,
    /// NRI is away: the listing inspects each new container.
    Cri,
}

/// Lists through CRI, and looks for missing agents if NRI is away. Adds new findings to `known`,
/// and removes what is gone. If the status of one container fails, it keeps its last known state,
/// and the others are listed.
///
/// # Errors
/// When containerd answers with an error, or not in time.
pub async fn list(
    channel: &Channel,
    known: &Mutex<ListingCache>,
    agents: AgentSource,
) -> Result<Listing, tonic::Status> {
    let mut client = client(channel);
    let sandboxes = in_time(client.list_pod_sandbox(wire::ListPodSandboxRequest::default()))
        .await?
        .items;
    let mut listing = Listing::default();
    let mut known = known.lock().await;
    let listed: BTreeSet<&str> = sandboxes.iter().map(|sandbox| sandbox.id.as_str()).collect();
    known.sandboxes.retain(|id, _| listed.contains(id.as_str()));
    known.reported_odd.retain(|id| listed.contains(id.as_str()));
    for sandbox in sandboxes {
        match convert::pod(&sandbox) {
            Ok(Some(InPlacePod::Supervised(pod))) => {
                let without = cannot_have_agents(&mut client, &sandbox, &mut known).await?;
                let id = SandboxId::from(sandbox.id);
                if without {
                    listing.plain_pods.insert(id, pod);
                } else {
                    listing.pods.push((id, pod));
                }
            }
            Ok(Some(InPlacePod::Plain(pod))) => drop(listing.plain_pods.insert(sandbox.id.into(), pod)),
            Ok(None) => {}
            Err(error) => {
                // Once per pod: any tenant can create such pods.
                if known.reported_odd.insert(SandboxId::from(sandbox.id.clone())) {
                    warn!(sandbox = sandbox.id, %error, "pod is not supervised");
                }
            }
        }
    }
    let containers = in_time(client.list_containers(wire::ListContainersRequest::default()))
        .await?
        .containers;
    let status = |id: String| {
        let mut client = client.clone();
        let request = wire::ContainerStatusRequest {
            container_id: id,
            verbose: false,
        };
        async move {
            let answer = in_time(client.container_status(request)).await;
            answer.map(|answer| answer.status)
        }
    };
    let mut listing = sort(listing, containers, status).await?;
    let live = || {
        let containers = listing.containers.iter();
        containers.filter(|container| container.ended.is_none())
    };
    let listed: BTreeSet<&ContainerId> = live().map(|container| &container.id).collect();
    known.containers.retain(|id, _| listed.contains(id));
    if agents == AgentSource::Cri {
        let mut found = Vec::new();
        for container in live() {
            if let Some((_, pod)) = listing.pods.iter().find(|(_, pod)| pod.uid == container.pod)
                && misses_agent(&mut client, pod, container, &mut known.containers).await?
            {
                found.push(LiveContainer {
                    pod: container.pod.clone(),
                    id: container.id.clone(),
                    name: container.name.clone(),
                    without_agent: true,
                });
            }
        }
        listing.without_agents = found;
    }
    Ok(listing)
}

/// True if a container was created without the agent that it could have. False if containerd does
/// not say: nothing is done to the container then.
///
/// # Errors
/// When containerd does not answer in time.
async fn misses_agent(
    client: &mut RuntimeServiceClient<Channel>,
    pod: &Pod,
    container: &ListedContainer,
    known: &mut BTreeMap<ContainerId, bool>,
) -> Result<bool, tonic::Status> {
    if let Some(known) = known.get(&container.id) {
        return Ok(*known);
    }
    let request = wire::ContainerStatusRequest {
        container_id: container.id.as_str().to_owned(),
        verbose: true,
    };
    let (id, name) = (container.id.clone(), container.name.clone());
    let missing = match in_time(client.container_status(request)).await {
        Ok(answer) => verbose::container(id, name, &answer.info).map(|made| inject::misses_agent(pod, &made)),
        Err(status) if status.code() == tonic::Code::DeadlineExceeded => return Err(status),
        Err(status) => {
            debug!(container = %container.id, error = status.message(), "containerd does not report how the container was created");
            return Ok(false);
        }
    };
    let missing = missing.unwrap_or_default();
    known.insert(container.id.clone(), missing);
    Ok(missing)
}

/// True if no container of this sandbox can have an agent. False if containerd does not say.
///
/// # Errors
/// When containerd does not answer in time.
async fn cannot_have_agents(
    client: &mut RuntimeServiceClient<Channel>,
    sandbox: &wire::PodSandbox,
    known: &mut ListingCache,
) -> Result<bool, tonic::Status> {
    let id = SandboxId::from(sandbox.id.as_str());
    if is_sandboxed(&sandbox.runtime_handler) {
        return Ok(true);
    }
    if let Some(known) = known.sandboxes.get(&id) {
        return Ok(*known);
    }
    let request = wire::PodSandboxStatusRequest {
        pod_sandbox_id: sandbox.id.clone(),
        verbose: false,
    };
    match in_time(client.pod_sandbox_status(request)).await {
        Ok(answer) => {
            let shared = convert::shares_processes(answer.status);
            if shared {
                info!(
                    sandbox = sandbox.id,
                    "the pod's containers share a PID namespace: its workers get no agents"
                );
            }
            known.sandboxes.insert(id, shared);
            Ok(shared)
        }
        Err(status) if status.code() == tonic::Code::DeadlineExceeded => Err(status),
        Err(status) => {
            if status.code() != tonic::Code::NotFound {
                warn!(
                    sandbox = sandbox.id,
                    error = status.message(),
                    "containerd does not report what the pod's containers share"
                );
            }
            Ok(false)
        }
    }
}

/// Adds the workers among these containers. `status` returns the exit of one that has ended.
///
/// # Errors
/// When a status does not come in time: the next one would not either.
async fn sort<Answer>(
    mut listing: Listing,
    containers: Vec<wire::Container>,
    mut status: impl FnMut(String) -> Answer,
) -> Result<Listing, tonic::Status>
where
    Answer: Future<Output = Result<Option<wire::ContainerStatus>, tonic::Status>>,
{
    let mut found = Vec::new();
    let mut created: BTreeMap<(PodUid, String), BTreeMap<u32, UnixNanos>> = BTreeMap::new();
    for container in containers {
        let worker = convert::worker(&container, &listing.pods);
        let plain = convert::plain(&container, &listing.plain_pods);
        let of_worker = worker.as_ref().map(|worker| (&worker.pod, &worker.name));
        let Some((pod, name)) = of_worker.or(plain.as_ref().map(|plain| (&plain.pod, &plain.name))) else {
            continue;
        };
        let place = (pod.clone(), name.clone());
        if let Some(metadata) = &container.metadata {
            let attempts = created.entry(place.clone()).or_default();
            attempts.insert(metadata.attempt, UnixNanos(container.created_at));
        }
        found.push((container, place, worker, plain));
    }
    for (container, place, worker, plain) in found {
        let mut ended = created
            .get(&place)
            .and_then(|attempts| convert::end_by_successor(&container, attempts));
        if container.state() == wire::ContainerState::ContainerExited {
            match status(container.id.clone()).await {
                Ok(status) => ended = convert::ended(status),
                // It has been removed since; a later listing or event reports that.
                Err(status) if status.code() == tonic::Code::NotFound => continue,
                Err(status) if status.code() == tonic::Code::DeadlineExceeded => return Err(status),
                Err(status) => {
                    let why = status.message().to_owned();
                    listing.unclear.insert(container.id.into(), why);
                }
            }
        }
        if let Some(worker) = worker {
            listing.containers.push(ListedContainer { ended, ..worker });
        } else if let Some(plain) = plain {
            listing.plain.push(PlainContainer { ended, ..plain });
        }
    }
    Ok(listing)
}

/// The answer to a call, if it comes in time.
async fn in_time<T>(
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>>,
) -> Result<T, tonic::Status> {
    match tokio::time::timeout(CALL_TIMEOUT, call).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(tonic::Status::deadline_exceeded(format!(
            "containerd has not answered for {CALL_TIMEOUT:?}"
        ))),
    }
}

/// Kills all processes of a container at once. A container that does not run is left unchanged.
///
/// # Errors
/// When containerd answers with an error other than `NotFound`.
pub async fn kill(channel: &Channel, id: &ContainerId) -> Result<(), tonic::Status> {
    // Never with a grace: a worker that ends with 0 would count as done.
    let request = wire::StopContainerRequest {
        container_id: id.as_str().to_owned(),
        timeout: 0,
    };
    match client(channel).stop_container(request).await {
        Err(status) if status.code() != tonic::Code::NotFound => Err(status),
        _ => Ok(()),
    }
}

/// A connector to containerd's socket, for [`tonic::transport::Endpoint`]s of any address.
pub fn connector(
    socket: PathBuf,
) -> impl Service<Uri, Response = TokioIo<UnixStream>, Error = io::Error, Future: Send> + Send + 'static {
    tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { Ok(TokioIo::new(UnixStream::connect(socket).await?)) }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::pod;
    use crate::worker::types::{Ended, Exit, UnixNanos};

    fn exited(id: &str) -> wire::Container {
        wire::Container {
            id: id.to_owned(),
            pod_sandbox_id: "s".to_owned(),
            metadata: Some(wire::ContainerMetadata {
                name: "worker".to_owned(),
                attempt: 0,
            }),
            state: wire::ContainerState::ContainerExited.into(),
            ..wire::Container::default()
        }
    }

    fn listing() -> Listing {
        Listing {
            pods: vec![("s".into(), pod("p"))],
            ..Listing::default()
        }
    }

    async fn listed(odd: tonic::Code) -> Result<Listing, tonic::Status> {
        let status = |id: String| async move {
            if id == "odd" {
                return Err(tonic::Status::new(odd, "no such shim"));
            }
            Ok(Some(wire::ContainerStatus {
                state: wire::ContainerState::ContainerExited.into(),
                exit_code: 3,
                finished_at: 42,
                ..wire::ContainerStatus::default()
            }))
        };
        sort(listing(), vec![exited("odd"), exited("even")], status).await
    }

    #[tokio::test]
    async fn a_failed_status_of_one_container_affects_no_other() {
        let found = listed(tonic::Code::Unknown).await.unwrap();
        let ends: Vec<_> = found
            .containers
            .iter()
            .map(|container| (container.id.as_str(), container.ended))
            .collect();
        let end = Ended {
            exit: Exit { code: 3, signal: 0 },
            at: UnixNanos(42),
        };
        assert_eq!(ends, [("odd", None), ("even", Some(end))]);
        assert_eq!(
            found.unclear,
            BTreeMap::from([("odd".into(), "no such shim".to_owned())])
        );
        // Removed since: it is not listed.
        let found = listed(tonic::Code::NotFound).await.unwrap();
        assert_eq!((found.containers.len(), found.unclear.len()), (1, 0));
        assert!(listed(tonic::Code::DeadlineExceeded).await.is_err());
    }

    #[tokio::test]
    async fn a_container_that_another_has_followed_has_ended() {
        use wire::ContainerState::{ContainerCreated, ContainerRunning, ContainerUnknown};
        let container = |id: &str, (sandbox, name): (&str, &str), attempt, state: wire::ContainerState| {
            wire::Container {
                pod_sandbox_id: sandbox.to_owned(),
                metadata: Some(wire::ContainerMetadata {
                    name: name.to_owned(),
                    attempt,
                }),
                state: state.into(),
                // The clock steps back.
                created_at: 100 - i64::from(attempt),
                ..exited(id)
            }
        };
        let mut pods = listing();
        pods.pods[0].1.supervised.insert("other".to_owned());
        pods.pods.push(("s2".into(), pod("p2")));
        pods.plain_pods.insert("s3".into(), pod("p3"));
        let no_status = |_| async { Err(tonic::Status::internal("nobody asks for it")) };
        let found = vec![
            container("created", ("s", "worker"), 0, ContainerCreated),
            container("unknown", ("s", "worker"), 1, ContainerUnknown),
            container("running", ("s", "worker"), 2, ContainerRunning),
            container("latest", ("s", "worker"), 3, ContainerUnknown),
            container("other", ("s", "other"), 0, ContainerCreated),
            container("pod", ("s2", "worker"), 0, ContainerCreated),
            container("plain", ("s3", "worker"), 0, ContainerCreated),
            container("after", ("s3", "worker"), 1, ContainerCreated),
        ];
        let found = sort(pods, found, no_status).await.unwrap();
        let workers = found.containers.iter().map(|it| (it.id.as_str(), it.ended));
        let plain = found.plain.iter().map(|it| (it.id.as_str(), it.ended));
        let ended: Vec<_> = workers
            .chain(plain)
            .filter_map(|(id, ended)| Some((id, ended?)))
            .collect();
        let end = |at| Ended {
            exit: Exit::UNKNOWN,
            at: UnixNanos(at),
        };
        assert_eq!(
            ended,
            [("created", end(99)), ("unknown", end(98)), ("plain", end(99))]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_missing_answer_times_out() {
        let never = std::future::pending::<Result<tonic::Response<()>, tonic::Status>>();
        let status = in_time(never).await.unwrap_err();
        assert_eq!(status.code(), tonic::Code::DeadlineExceeded);
    }
}
