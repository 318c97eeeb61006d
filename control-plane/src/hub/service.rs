//! The gRPC service and its server.

use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use lockstep_proto::node::v1::node_hub_server::{NodeHub, NodeHubServer};
use lockstep_proto::node::v1::{self as pb, node_message::Kind};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::auth::Authenticator;
use super::handshake;
use super::registry::Registry;
use super::session::Outbox;
use crate::serve::listen;

/// Serves `lockstep.node.v1.NodeHub`.
pub struct HubService {
    registry: Arc<Registry>,
    authenticator: Arc<dyn Authenticator>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

#[tonic::async_trait]
impl NodeHub for HubService {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<pb::HubMessage, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<pb::NodeMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let identity = self
            .authenticator
            .authenticate(request.metadata())
            .await
            .inspect_err(
                |error| tracing::warn!(peer = ?request.remote_addr(), %error, "a node daemon was refused"),
            )?;
        let mut inbound = request.into_inner();
        let (hello, protocol) = handshake::hello(&mut inbound)
            .await
            .inspect_err(|error| tracing::warn!(node = identity.node, %error, "a node daemon was refused"))?;
        let node = identity.node;
        let outbox = Outbox::new(pb::Welcome {
            protocol,
            epoch: self.registry.epoch().0,
        });
        tracing::info!(
            node,
            daemon = hello.daemon_version,
            boot_id = hello.boot_id,
            workers = hello.snapshot.len(),
            protocol,
            "node connected"
        );
        let session = self.registry.connect(&node, &outbox, protocol, hello.snapshot);

        let span = tracing::info_span!("session", node, session);
        let registry = Arc::clone(&self.registry);
        let shutdown = self.shutdown.clone();
        let out = Arc::clone(&outbox);
        self.tasks.spawn(
            async move {
                let reason = tokio::select! {
                    reason = receive(&registry, &node, &mut inbound) => reason,
                    () = shutdown.cancelled() => {
                        out.drain();
                        "shutting down".to_owned()
                    }
                };
                registry.disconnect(&node, session);
                out.drain();
                tracing::info!(reason, "node disconnected");
            }
            .instrument(span),
        );
        let stream = futures::stream::unfold(outbox, |outbox| async move {
            let message = outbox.next().await?;
            Some((Ok(message), outbox))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// Takes in the node's messages until its stream ends; says why it did.
async fn receive(registry: &Registry, node: &str, inbound: &mut Streaming<pb::NodeMessage>) -> String {
    loop {
        match inbound.next().await {
            Some(Ok(message)) => match message.kind {
                Some(Kind::Report(report)) => registry.report(node, report.workers),
                Some(Kind::Pong(_)) => {}
                Some(Kind::Hello(_)) => return "a second Hello".to_owned(),
                None => return "a message of an unknown kind".to_owned(),
            },
            Some(Err(status)) => return status.to_string(),
            None => return "closed by the node".to_owned(),
        }
    }
}

/// Serves the hub until `shutdown` is cancelled. Sessions are ended with Drain and awaited.
///
/// # Errors
/// Where the address cannot be bound or the server fails.
pub async fn serve(
    address: SocketAddr,
    identity: Identity,
    registry: Arc<Registry>,
    authenticator: Arc<dyn Authenticator>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let listener = listen(address)
        .await
        .with_context(|| format!("--hub-bind-address {address}"))?;
    tracing::info!(address = %listener.local_addr()?, "hub listens");
    serve_on(listener, identity, registry, authenticator, shutdown).await
}

pub(super) async fn serve_on(
    listener: TcpListener,
    identity: Identity,
    registry: Arc<Registry>,
    authenticator: Arc<dyn Authenticator>,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let tasks = TaskTracker::new();
    let service = HubService {
        registry,
        authenticator,
        tasks: tasks.clone(),
        shutdown: shutdown.clone(),
    };
    let incoming = TcpListenerStream::new(listener).map(|stream| {
        let stream = stream?;
        stream.set_nodelay(true)?;
        Ok::<_, std::io::Error>(stream)
    });
    Server::builder()
        .tls_config(ServerTlsConfig::new().identity(identity))?
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .add_service(NodeHubServer::new(service))
        .serve_with_incoming_shutdown(incoming, shutdown.cancelled_owned())
        .await?;
    tasks.close();
    tasks.wait().await;
    Ok(())
}
