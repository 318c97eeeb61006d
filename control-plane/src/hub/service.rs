//! The gRPC service and its server.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use lockstep_process::rate_limit::SharedRateLimit;
use lockstep_proto::node::v1::node_hub_server::{NodeHub, NodeHubServer};
use lockstep_proto::node::v1::{self as pb, hub_message};
use rustls::ServerConfig;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::transport::Server;
use tonic::{Request, Response, Status, Streaming};
use tracing::Instrument;

use super::auth::{Authenticator, Credentials, GRACE};
use super::convert;
use super::message_rate::{HELLO, MessageRates};
use super::outbox::{Outbox, Outgoing};
use super::protocol;
use super::refusals::Refusals;
use super::role::{HOLD, Role, Term};
use super::session::Session;
use crate::net::serve::{Ready, listen, listen_once_free};
use crate::net::tls::{
    self, AdmittedStream, ConnectionHandle, ConnectionLimit, HubIdentity, UnauthenticatedStream,
};

/// How the hub checks daemons.
#[derive(Clone)]
pub struct Gate {
    /// Checks their tokens.
    pub authenticator: Arc<Authenticator>,
    /// Counts and logs refusals.
    pub refusals: Arc<Refusals>,
    /// Connections from one address, at the same time, on which no daemon has authenticated yet.
    pub unknown_connections: usize,
}

/// Serves `lockstep.node.v1.NodeHub`.
pub struct HubService {
    role: Arc<Role>,
    gate: Gate,
    paces: MessageRates,
    /// How long a stream continues after its token has expired.
    grace: Duration,
    /// Ends all waits.
    shutdown: CancellationToken,
}

/// How long a connection may stay open before a daemon authenticates on it: longer than token and
/// Hello may take.
const UNAUTHENTICATED: Duration = Duration::from_secs(30);
/// Streams of one connection; a daemon has one.
pub(super) const STREAMS: u32 = 8;
/// Bytes that a connection may send before they are read.
const WINDOW: u32 = 64 << 10;
/// Longest headers of a stream, in bytes. A token has one or two KiB.
const LONGEST_HEAD: u32 = 16 << 10;
/// Largest message from a daemon, in bytes: far more than the reports of all workers that are kept
/// of a node.
const MESSAGE: usize = 4 << 20;

type Messages = Pin<Box<dyn Stream<Item = Result<pb::HubMessage, Status>> + Send>>;

#[tonic::async_trait]
impl NodeHub for HubService {
    type ConnectStream = Messages;

    async fn connect(
        &self,
        request: Request<Streaming<pb::NodeMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let latest = Instant::now() + HOLD;
        let Gate {
            authenticator,
            refusals,
            ..
        } = &self.gate;
        let connection = request.extensions().get::<ConnectionHandle>().cloned();
        let credentials = authenticator.authenticate(request.metadata()).await;
        let credentials = credentials.inspect_err(|error| {
            let peer = connection
                .as_ref()
                .map(ConnectionHandle::address)
                .unwrap_or_default();
            refusals.note(&peer, error.reason(), error);
        })?;
        let mut inbound = request.into_inner();
        // Before the Hello is read, and on every replica. The time limit of an unauthenticated
        // connection ends the wait.
        let pace = self.paces.of(&credentials.node);
        let _ = self.shutdown.run_until_cancelled(pace.acquire(HELLO)).await;
        let (hello, protocol) = protocol::hello(&mut inbound)
            .await
            .inspect_err(|error| refusals.note(&credentials.node, error.reason(), error))?;
        let admitted = connection.as_ref().map(ConnectionHandle::admit);
        let _ = self.shutdown.run_until_cancelled(self.role.settled(latest)).await;
        let accepted = self.role.within(|term| {
            let daemon = KnownDaemon {
                credentials,
                hello,
                protocol,
                pace,
                admitted,
            };
            self.accept(term, daemon, inbound)
        });
        let messages = accepted.unwrap_or_else(|address| {
            let kind = hub_message::Kind::NotLeader(pb::NotLeader { address });
            let message = pb::HubMessage { kind: Some(kind) };
            Box::pin(futures::stream::iter([Ok(message)]))
        });
        Ok(Response::new(messages))
    }
}

/// A daemon that has authenticated and sent its Hello on a stream.
struct KnownDaemon {
    credentials: Credentials,
    hello: pb::Hello,
    protocol: u32,
    pace: Arc<SharedRateLimit>,
    /// Keeps its connection open.
    admitted: Option<AdmittedStream>,
}

impl HubService {
    /// Starts a stream that belongs to this term. Returns the messages to send on it.
    fn accept(&self, term: &Term, daemon: KnownDaemon, inbound: Streaming<pb::NodeMessage>) -> Messages {
        let KnownDaemon {
            credentials,
            hello,
            protocol,
            pace,
            admitted,
        } = daemon;
        let node = credentials.node.as_str();
        let registry = &term.registry;
        let outbox = Outbox::new(pb::Welcome {
            protocol,
            epoch: registry.epoch().0,
        });
        let version = convert::text_from(hello.daemon_version);
        tracing::info!(
            node,
            daemon = version,
            boot_id = convert::text_from(hello.boot_id),
            workers = hello.snapshot.len(),
            protocol,
            "node connected"
        );
        let session = registry.connect(node, &outbox, protocol, hello.snapshot);
        registry.set_daemon(node, session, version, convert::health_from(hello.health));
        let span = tracing::info_span!("session", node, session);
        let stream = Session {
            registry: Arc::clone(registry),
            authenticator: Arc::clone(&self.gate.authenticator),
            refusals: Arc::clone(&self.gate.refusals),
            outbox: Arc::clone(&outbox),
            credentials,
            grace: self.grace,
            protocol,
            pace,
        };
        let stream = stream.run(session, inbound, term.end.clone());
        let stream = async move {
            stream.await;
            // An open stream keeps the connection.
            drop(admitted);
        };
        term.tasks.spawn(stream.instrument(span));
        Box::pin(Outgoing::new(outbox))
    }
}

/// Serves the hub until `shutdown` is cancelled, in every role of this replica. It begins, and is
/// `ready`, once there is a certificate and the address is free. An address in use is not fatal,
/// since JobSets without in-place restart need no hub.
///
/// # Errors
/// If the address cannot be bound for another reason, or the server fails.
pub(crate) async fn run(
    address: SocketAddr,
    identity: Arc<HubIdentity>,
    role: Arc<Role>,
    gate: Gate,
    ready: Ready,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let authenticator = Arc::clone(&gate.authenticator);
    let serve = async {
        let Some(tls) = shutdown.run_until_cancelled(identity.ready()).await else {
            return Ok(());
        };
        let listener = match listen(address).await {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                let free = listen_once_free(address, "hub");
                match shutdown.run_until_cancelled(free).await {
                    Some(listener) => listener,
                    None => return Ok(()),
                }
            }
            listener => listener.with_context(|| format!("--hub-bind-address {address}"))?,
        };
        let tls = tls?;
        tracing::info!(address = %listener.local_addr()?, "hub listens");
        ready.set();
        serve_on(listener, tls, role, gate, GRACE, shutdown.clone()).await
    };
    tokio::select! {
        served = serve => served,
        () = authenticator.keep(CancellationToken::new()) => Ok(()),
    }
}

/// Serves the hub on the caller's listener until `shutdown`, without a cluster. The CA is in a
/// directory (`ca.crt`, `ca.key`), and is generated if it is missing. Benchmarks use this.
///
/// # Errors
/// If the directory holds no CA and none can be generated, or the server fails.
pub async fn serve_from_dir(
    listener: TcpListener,
    ca: &Path,
    role: Arc<Role>,
    gate: Gate,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let certificate = watch::channel(Some(tls::from_dir(ca)?)).1;
    let tls = tls::grpc(certificate)?;
    let authenticator = Arc::clone(&gate.authenticator);
    tokio::select! {
        served = serve_on(listener, tls, role, gate, GRACE, shutdown.clone()) => served,
        () = authenticator.keep(CancellationToken::new()) => Ok(()),
    }
}

pub(super) async fn serve_on(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    role: Arc<Role>,
    gate: Gate,
    grace: Duration,
    shutdown: CancellationToken,
) -> anyhow::Result<()> {
    let refusals = Arc::clone(&gate.refusals);
    let limit = ConnectionLimit::new(gate.unknown_connections, move |peer, why| {
        refusals.note(peer, why.reason(), why);
    });
    let service = HubService {
        role,
        gate,
        paces: MessageRates::default(),
        grace,
        shutdown: shutdown.clone(),
    };
    let service = NodeHubServer::new(service).max_decoding_message_size(MESSAGE);
    let connections = tls::accept(listener, tls, limit)
        .map(|accepted| accepted.map(|guest| UnauthenticatedStream::of(guest, Some(UNAUTHENTICATED))));
    Server::builder()
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
        .max_concurrent_streams(STREAMS)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_max_header_list_size(LONGEST_HEAD)
        .add_service(service)
        .serve_with_incoming_shutdown(connections, shutdown.cancelled_owned())
        .await?;
    Ok(())
}
