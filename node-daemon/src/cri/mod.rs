//! What the daemon asks containerd through CRI: which pods and containers there are, and how those that ended did.

pub mod convert;

use lockstep_proto::cri::v1 as wire;
use lockstep_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use tonic::transport::Channel;
use tracing::warn;

use crate::worker::facts::ListedContainer;
use crate::worker::types::{Pod, SandboxId};

/// The pods with workers of this node, and their worker containers.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// Every sandbox of such a pod.
    pub pods: Vec<(SandboxId, Pod)>,
    /// Every container that should be a worker, ended or not.
    pub containers: Vec<ListedContainer>,
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
            Ok(Some(pod)) => listing.pods.push((sandbox.id.into(), pod)),
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
        let Some(mut listed) = convert::worker(&container, &listing.pods) else {
            continue;
        };
        if container.state() == wire::ContainerState::ContainerExited {
            let request = wire::ContainerStatusRequest {
                container_id: container.id,
                verbose: false,
            };
            match client.container_status(request).await {
                Ok(response) => listed.ended = convert::ended(response.into_inner().status),
                // Removed since: a later listing or event says so.
                Err(status) if status.code() == tonic::Code::NotFound => continue,
                Err(status) => return Err(status),
            }
        }
        listing.containers.push(listed);
    }
    Ok(listing)
}
