//! A client of the platform API, which it reaches in the leader's pod through the API server, or at
//! an address.

use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{ConfigMap, Pod};
use kube::ResourceExt as _;
use kube::api::Api;
use lockstep_api::{Target, WorkerRestartRequest};
use lockstep_proto::platform::v1::platform_client::PlatformClient;
use lockstep_proto::platform::v1::watch_groups_response::Event;
use lockstep_proto::platform::v1::{self as pb};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use tonic::{Request, Status, Streaming};
use tower::service_fn;

use super::retry::with_retries;
use super::{Cluster, answer, causes};
use crate::view::check::holder;
use crate::view::pods;

/// The name in the certificate, independent of the address.
const SERVER_NAME: &str = "lockstep-control-plane";
/// Time limit for connecting to the platform API. After it, commands go on without it.
const REACH_TIMEOUT: Duration = Duration::from_secs(8);
/// Objects per page of a list.
const PAGE_SIZE: u32 = 200;

/// Largest answer that is accepted. A group is one message with all its workers, so the default of
/// gRPC, 4 MiB, is too small for the largest groups.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// A connection to the platform API.
pub(crate) struct Platform {
    client: PlatformClient<Channel>,
    token: MetadataValue<Ascii>,
    /// How it was reached, for people.
    pub(crate) how: String,
}

impl Cluster {
    /// Connects to the platform API. The token is checked by the first call.
    pub(crate) async fn platform(&self) -> Result<Platform> {
        let connected = tokio::time::timeout(REACH_TIMEOUT, self.connect()).await;
        connected.unwrap_or_else(|_| Err(anyhow!("no answer within {} s", REACH_TIMEOUT.as_secs())))
    }

    async fn connect(&self) -> Result<Platform> {
        let token = self.token().await?;
        let mut token: MetadataValue<Ascii> = format!("Bearer {token}")
            .parse()
            .map_err(|_| anyhow!("the token has invalid characters"))?;
        token.set_sensitive(true);
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(self.hub_ca().await?))
            .domain_name(SERVER_NAME);
        let (channel, how) = match &self.args.server {
            Some(server) => {
                let endpoint = Endpoint::from_shared(format!("https://{server}"))
                    .with_context(|| format!("--server {server}"))?;
                let channel = endpoint
                    .tls_config(tls)?
                    .connect_timeout(REACH_TIMEOUT)
                    .connect()
                    .await;
                (
                    channel.map_err(|error| anyhow!("{server}: {}", causes(&error)))?,
                    server.clone(),
                )
            }
            None => self.through_api_server(tls).await?,
        };
        Ok(Platform {
            client: PlatformClient::new(channel).max_decoding_message_size(MAX_ANSWER_BYTES),
            token,
            how,
        })
    }

    async fn hub_ca(&self) -> Result<String> {
        let maps: Api<ConfigMap> = Api::namespaced(self.client.clone(), &self.system);
        let map = answer("the platform API's CA", maps.get("lockstep-hub-ca")).await?;
        let pem = map.data.and_then(|mut data| data.remove("ca.crt"));
        pem.context("ConfigMap lockstep-hub-ca has no ca.crt")
    }

    /// Connects to the leader's pod by a port-forward.
    async fn through_api_server(&self, tls: ClientTlsConfig) -> Result<(Channel, String)> {
        let leader = self.leader().await?;
        let name = leader.name_any();
        let port = port(&leader).with_context(|| {
            format!(
                "pod {}/{name} serves no platform API: set platform.enable=true in the chart",
                self.system
            )
        })?;
        let pods: Api<Pod> = Api::namespaced(self.client.clone(), &self.system);
        let pod = name.clone();
        let forward = service_fn(move |_| {
            let (pods, pod) = (pods.clone(), pod.clone());
            async move {
                let forwarded = pods.portforward(&pod, &[port]).await;
                let mut forwarded = forwarded.map_err(|error| std::io::Error::other(super::words(&error)))?;
                let stream = forwarded.take_stream(port);
                let stream =
                    stream.ok_or_else(|| std::io::Error::other("the API server forwards no port"))?;
                Ok::<_, std::io::Error>(TokioIo::new(stream))
            }
        });
        let endpoint = Endpoint::from_shared(format!("https://{name}:{port}"))?.tls_config(tls)?;
        let channel = endpoint.connect_with_connector(forward).await;
        let channel = channel.map_err(|error| {
            anyhow!(
                "port {port} of pod {}/{name} through the API server: {}",
                self.system,
                causes(&error)
            )
        })?;
        Ok((
            channel,
            format!(
                "port {port} of pod {}/{name}, through the API server",
                self.system
            ),
        ))
    }

    /// The pod of the leader.
    async fn leader(&self) -> Result<Pod> {
        let lease = self.lease().await?;
        let lease = lease.with_context(|| {
            format!(
                "no Lease of Lockstep in namespace {} (see --system-namespace)",
                self.system
            )
        })?;
        let holder = holder(&lease)
            .context("no replica of the control plane leads")?
            .to_owned();
        let pods = self.control_plane_pods().await?;
        let leader = pods.into_iter().find(|pod| pods::holds(pod, &holder));
        leader.with_context(|| {
            format!(
                "{holder} leads, but is not a pod in namespace {}: give its address with --server",
                self.system
            )
        })
    }
}

/// The port on which the pod serves the platform API, if it does.
fn port(pod: &Pod) -> Option<u16> {
    let containers = pod.spec.as_ref().map(|spec| spec.containers.as_slice());
    let mut ports = containers
        .unwrap_or_default()
        .iter()
        .flat_map(|container| container.ports.iter().flatten());
    let named = ports.find(|port| port.name.as_deref() == Some("platform"))?;
    u16::try_from(named.container_port).ok()
}

impl Platform {
    fn request<M>(&self, message: M) -> Request<M> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.token.clone());
        request.set_timeout(super::REQUEST_TIMEOUT);
        request
    }

    /// All groups of a namespace; an empty one means all namespaces.
    pub(crate) async fn groups(&self, namespace: &str) -> Result<Vec<pb::Group>, Status> {
        let mut groups = Vec::new();
        let mut list = pb::ListGroupsRequest {
            namespace: namespace.to_owned(),
            page_size: PAGE_SIZE,
            ..pb::ListGroupsRequest::default()
        };
        loop {
            let page = self
                .client
                .clone()
                .list_groups(self.request(list.clone()))
                .await?
                .into_inner();
            groups.extend(page.groups);
            if page.next_page_token.is_empty() {
                return Ok(groups);
            }
            list.page_token = page.next_page_token;
        }
    }

    /// The nodes whose daemons are connected.
    pub(crate) async fn nodes(&self) -> Result<Vec<pb::Node>, Status> {
        let mut nodes = Vec::new();
        let mut list = pb::ListNodesRequest {
            page_size: PAGE_SIZE,
            ..pb::ListNodesRequest::default()
        };
        loop {
            let page = self.client.clone().list_nodes(self.request(list.clone())).await?;
            let page = page.into_inner();
            nodes.extend(page.nodes);
            if page.next_page_token.is_empty() {
                return Ok(nodes);
            }
            list.page_token = page.next_page_token;
        }
    }

    /// One group, if it exists.
    pub(crate) async fn group(&self, namespace: &str, name: &str) -> Result<Option<pb::Group>, Status> {
        let watch = pb::WatchGroupsRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            omit_workers: false,
        };
        let mut events = self
            .client
            .clone()
            .watch_groups(self.request(watch))
            .await?
            .into_inner();
        let mut group = None;
        while let Some(event) = events.message().await? {
            match event.event {
                Some(Event::Changed(changed)) => group = Some(changed),
                Some(Event::Removed(_)) => group = None,
                Some(Event::Synced(_)) => break,
                None => {}
            }
        }
        Ok(group)
    }

    /// Watches groups until the stream ends. An empty namespace or name means all.
    pub(crate) async fn watch(
        &self,
        namespace: &str,
        name: &str,
    ) -> Result<Streaming<pb::WatchGroupsResponse>, Status> {
        let watch = pb::WatchGroupsRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            omit_workers: false,
        };
        let mut request = Request::new(watch);
        request.metadata_mut().insert("authorization", self.token.clone());
        let mut client = self.client.clone();
        match tokio::time::timeout(REACH_TIMEOUT, client.watch_groups(request)).await {
            Ok(stream) => Ok(stream?.into_inner()),
            Err(_) => Err(Status::deadline_exceeded("no answer in time")),
        }
    }

    /// Requests a restart of all workers.
    pub(crate) async fn restart(
        &self,
        namespace: &str,
        name: &str,
        token: &str,
    ) -> Result<pb::RestartGroupResponse, Status> {
        let restart = pb::RestartGroupRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            token: token.to_owned(),
        };
        let answer = self.client.clone().restart_group(self.request(restart)).await?;
        Ok(answer.into_inner())
    }

    /// Requests a restart of some workers.
    pub(crate) async fn restart_workers(
        &self,
        namespace: &str,
        name: &str,
        request: &WorkerRestartRequest,
    ) -> Result<(), Status> {
        let restart = pb::RestartWorkersRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            token: request.token.clone(),
            only: Some(target(&request.target)),
        };
        // The token makes the request idempotent.
        let mut client = self.client.clone();
        with_retries(async || client.restart_workers(self.request(restart.clone())).await).await?;
        Ok(())
    }

    /// Asks what a restart of some workers would do.
    pub(crate) async fn dry_run_workers(
        &self,
        namespace: &str,
        name: &str,
        request: &WorkerRestartRequest,
    ) -> Result<pb::DryRun, Status> {
        let restart = pb::DryRunRestartWorkersRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            token: request.token.clone(),
            only: Some(target(&request.target)),
        };
        let mut client = self.client.clone();
        let answer = with_retries(async || {
            client
                .dry_run_restart_workers(self.request(restart.clone()))
                .await
        })
        .await?;
        Ok(answer.into_inner().dry_run.unwrap_or_default())
    }

    /// Asks what a restart of all workers would do.
    pub(crate) async fn dry_run(
        &self,
        namespace: &str,
        name: &str,
        token: &str,
    ) -> Result<pb::DryRun, Status> {
        let restart = pb::DryRunRestartRequest {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            token: token.to_owned(),
        };
        let mut client = self.client.clone();
        let answer =
            with_retries(async || client.dry_run_restart(self.request(restart.clone())).await).await?;
        Ok(answer.into_inner().dry_run.unwrap_or_default())
    }
}

fn target(of: &Target) -> pb::Target {
    use pb::target::Workers;
    let workers = match of {
        Target::ReplicatedJob(name) => Workers::ReplicatedJob(name.clone()),
        Target::Job(name) => Workers::Job(name.clone()),
        Target::Worker {
            job,
            index,
            container,
        } => Workers::Worker(pb::WorkerIdentity {
            job: job.clone(),
            completion_index: *index,
            container: container.clone().unwrap_or_default(),
        }),
    };
    pb::Target {
        workers: Some(workers),
    }
}
