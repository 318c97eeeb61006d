//! The server.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use futures::{Stream, StreamExt as _};
use lockstep_proto::node::v1::node_hub_server::{NodeHub, NodeHubServer};
use lockstep_proto::node::v1::{self as wire, hub_message, node_message};
use rcgen::{CertificateParams, KeyPair};
use tokio::sync::{Notify, watch};
use tokio_stream::wrappers::WatchStream;
use tonic::transport::{Identity, Server, ServerTlsConfig};
use tonic::{Request, Response, Status, Streaming};

use super::{Args, NAME, Ping, identity};
use crate::message::{BenchEvent, Order, now, orders, say};

/// How often the number of connections is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

pub(crate) async fn run(args: Args) -> Result<()> {
    let mut server = Server::builder()
        .tcp_nodelay(true)
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)));
    if let Some(dir) = &args.dir {
        server = server.tls_config(ServerTlsConfig::new().identity(certificate(dir)?))?;
    }
    let counts = Arc::new(Counts {
        clients: args.clients,
        connected: AtomicUsize::new(0),
        answers: AtomicUsize::new(0),
        all: Notify::new(),
    });
    let (pings, _) = watch::channel(wire::Ping::default());
    let service = Bare {
        counts: Arc::clone(&counts),
        pings: pings.clone(),
    };
    let address = (Ipv4Addr::LOCALHOST, args.port).into();
    let serve = server.add_service(NodeHubServer::new(service)).serve(address);
    say(BenchEvent::Ready);
    tokio::select! {
        served = serve => Ok(served?),
        ended = handle_orders(&counts, &pings) => ended,
    }
}

/// The certificate, which is created if there is none.
fn certificate(dir: &Path) -> Result<Identity> {
    let (certificate, key) = identity(dir);
    if !key.exists() {
        let pair = KeyPair::generate()?;
        let signed = CertificateParams::new([NAME.to_owned()])?.self_signed(&pair)?;
        fs::write(&certificate, signed.pem())?;
        fs::write(&key, pair.serialize_pem())?;
    }
    Ok(Identity::from_pem(fs::read(certificate)?, fs::read(key)?))
}

async fn handle_orders(counts: &Counts, pings: &watch::Sender<wire::Ping>) -> Result<()> {
    let mut round = 0;
    let mut restarts = 0;
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        match order {
            Order::Await { connected } => {
                while counts.connected.load(Ordering::Relaxed) < connected {
                    tokio::time::sleep(CHECK_INTERVAL).await;
                }
                say(BenchEvent::Connected { at: now() });
            }
            Order::Push { value } => {
                say(BenchEvent::Pushed { at: now() });
                pings.send_replace(Ping::Value(value.into()).encode());
            }
            Order::Raise | Order::Fail { .. } => {
                say(BenchEvent::Pushed { at: now() });
                let rounds = if matches!(order, Order::Raise) { 1 } else { 2 };
                for _ in 0..rounds {
                    round += 1;
                    counts.answers.store(0, Ordering::Relaxed);
                    pings.send_replace(Ping::Round(round).encode());
                    counts.all.notified().await;
                }
                restarts += 1;
                say(BenchEvent::Synced {
                    group: 0,
                    generation: restarts,
                    at: now(),
                    parked_ms: 0.0,
                });
            }
            Order::Start | Order::Coordinate | Order::Steps | Order::Count => {}
        }
    }
    Ok(())
}

struct Counts {
    clients: usize,
    connected: AtomicUsize,
    /// Of this round.
    answers: AtomicUsize,
    all: Notify,
}

struct Bare {
    counts: Arc<Counts>,
    pings: watch::Sender<wire::Ping>,
}

#[tonic::async_trait]
impl NodeHub for Bare {
    type ConnectStream = Pin<Box<dyn Stream<Item = Result<wire::HubMessage, Status>> + Send>>;

    async fn connect(
        &self,
        request: Request<Streaming<wire::NodeMessage>>,
    ) -> Result<Response<Self::ConnectStream>, Status> {
        let mut answers = request.into_inner();
        let counts = Arc::clone(&self.counts);
        tokio::spawn(async move {
            counts.connected.fetch_add(1, Ordering::Relaxed);
            while let Some(Ok(message)) = answers.next().await {
                let is_answer = matches!(message.kind, Some(node_message::Kind::Pong(_)));
                if is_answer && counts.answers.fetch_add(1, Ordering::Relaxed) + 1 == counts.clients {
                    counts.all.notify_one();
                }
            }
            counts.connected.fetch_sub(1, Ordering::Relaxed);
        });
        let pings = WatchStream::from_changes(self.pings.subscribe()).map(|ping| {
            let kind = Some(hub_message::Kind::Ping(ping));
            Ok(wire::HubMessage { kind })
        });
        Ok(Response::new(Box::pin(pings)))
    }
}
