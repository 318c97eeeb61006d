//! What the daemon asks containerd through CRI: which pods and containers there are, how those that ended did, and to kill some.

pub mod convert;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use hyper_util::rt::TokioIo;
use lockstep_proto::cri::v1 as wire;
use lockstep_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use tokio::net::UnixStream;
use tonic::transport::{Channel, Uri};
use tower::Service;
use tracing::warn;

use crate::plain::state::Listed;
use crate::pods::Marked;
use crate::worker::facts::ListedContainer;
use crate::worker::types::{ContainerId, Exit, Pod, SandboxId};

/// The pods with workers of this node, and their worker containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Every sandbox of such a pod.
    pub pods: Vec<(SandboxId, Pod)>,
    /// Every container that should be a worker, ended or not.
    pub containers: Vec<ListedContainer>,
    /// Every sandbox of a pod with workers without an agent.
    pub plain_pods: BTreeMap<SandboxId, Pod>,
    /// Every container of these that is a worker, ended or not.
    pub plain: Vec<Listed>,
}

/// Lists through CRI.
///
/// # Errors
/// When containerd answers with an error.
pub async fn list(channel: &Channel) -> Result<Listing, tonic::Status> {
    let mut client = RuntimeServiceClient::new(channel.clone());
    let sandboxes = client
        .list_pod_sandbox(wire::ListPodSandboxRequest::default())
        .await?
        .into_inner()
        .items;
    let mut listing = Listing::default();
    for sandbox in sandboxes {
        match convert::pod(&sandbox) {
            Ok(Some(Marked::Supervised(pod))) => listing.pods.push((sandbox.id.into(), pod)),
            Ok(Some(Marked::Plain(pod))) => drop(listing.plain_pods.insert(sandbox.id.into(), pod)),
            Ok(None) => {}
            Err(error) => warn!(sandbox = sandbox.id, %error, "pod is not supervised"),
        }
    }
    let containers = client
        .list_containers(wire::ListContainersRequest::default())
        .await?
        .into_inner()
        .containers;
    for container in containers {
        if let Some(mut worker) = convert::worker(&container, &listing.pods) {
            if let Some(ended) = ended(&mut client, &container).await? {
                worker.ended = ended;
                listing.containers.push(worker);
            }
        } else if let Some(mut plain) = convert::plain(&container, &listing.plain_pods)
            && let Some(ended) = ended(&mut client, &container).await?
        {
            plain.ended = ended;
            listing.plain.push(plain);
        }
    }
    Ok(listing)
}

/// How and when a container ended, if it has. `None`: it was removed since, and a later listing or event says so.
async fn ended(
    client: &mut RuntimeServiceClient<Channel>,
    container: &wire::Container,
) -> Result<Option<Option<(Exit, i64)>>, tonic::Status> {
    if container.state() != wire::ContainerState::ContainerExited {
        return Ok(Some(None));
    }
    let request = wire::ContainerStatusRequest {
        container_id: container.id.clone(),
        verbose: false,
    };
    match client.container_status(request).await {
        Ok(response) => Ok(Some(convert::ended(response.into_inner().status))),
        Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
        Err(status) => Err(status),
    }
}

/// Kills all processes of a container at once. One that does not run is left as it is.
///
/// # Errors
/// When containerd answers with an error, other than that it is gone.
pub async fn kill(channel: &Channel, id: &ContainerId) -> Result<(), tonic::Status> {
    // Never with a grace: a worker that ends with 0 would count as done.
    let request = wire::StopContainerRequest {
        container_id: id.as_str().to_owned(),
        timeout: 0,
    };
    match RuntimeServiceClient::new(channel.clone())
        .stop_container(request)
        .await
    {
        Err(status) if status.code() != tonic::Code::NotFound => Err(status),
        _ => Ok(()),
    }
}

/// The way to containerd's socket, for [`tonic::transport::Endpoint`]s whatever their address.
pub fn connector(
    socket: PathBuf,
) -> impl Service<Uri, Response = TokioIo<UnixStream>, Error = io::Error, Future: Send> + Send + 'static {
    tower::service_fn(move |_| {
        let socket = socket.clone();
        async move { Ok(TokioIo::new(UnixStream::connect(socket).await?)) }
    })
}
