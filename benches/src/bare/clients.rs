//! All clients in one process, each with its own connection.

use std::fs;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use backon::{BackoffBuilder as _, ExponentialBuilder};
use lockstep_proto::node::v1::node_hub_client::NodeHubClient;
use lockstep_proto::node::v1::{self as wire, hub_message, node_message};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint};

use super::{Args, NAME, Ping, identity};
use crate::message::{BenchEvent, orders, say};
use crate::tally::Tally;

pub(crate) async fn run(args: Args) -> Result<()> {
    let scheme = if args.dir.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://127.0.0.1:{}", args.port))?
        .tcp_nodelay(true)
        .http2_keep_alive_interval(Duration::from_secs(10))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true);
    let tls = match &args.dir {
        Some(dir) => {
            let trusted = Certificate::from_pem(fs::read(identity(dir).0)?);
            Some(ClientTlsConfig::new().ca_certificate(trusted).domain_name(NAME))
        }
        None => None,
    };
    let tally = Arc::new(Tally::new(0, args.clients, say));
    for _ in 0..args.clients {
        tokio::spawn(client(endpoint.clone(), tls.clone(), Arc::clone(&tally)));
    }
    say(BenchEvent::Ready);
    let mut orders = orders();
    while orders.recv().await.is_some() {}
    Ok(())
}

/// Connects repeatedly, with the back-off of a daemon.
async fn client(endpoint: Endpoint, tls: Option<ClientTlsConfig>, tally: Arc<Tally>) {
    let delays = || {
        ExponentialBuilder::default()
            .with_min_delay(Duration::from_millis(50))
            .with_max_delay(Duration::from_millis(2500))
            .with_jitter()
            .without_max_times()
            .build()
    };
    let mut left = delays();
    loop {
        // The client reconnects after any end.
        if let Ok(()) = stream(endpoint.clone(), tls.clone(), &tally).await {
            left = delays();
        }
        tokio::time::sleep(left.next().unwrap_or_default()).await;
    }
}

/// Runs one stream to its end. As in a daemon, no TLS session is resumed.
async fn stream(mut endpoint: Endpoint, tls: Option<ClientTlsConfig>, tally: &Tally) -> Result<()> {
    if let Some(tls) = tls {
        endpoint = endpoint.tls_config(tls)?;
    }
    let channel = endpoint.connect().await?;
    let (answers, outgoing) = mpsc::channel(1);
    let mut service = NodeHubClient::new(channel);
    let mut pings = service.connect(ReceiverStream::new(outgoing)).await?.into_inner();
    while let Ok(Some(message)) = pings.message().await {
        let Some(hub_message::Kind::Ping(ping)) = message.kind else {
            continue;
        };
        match Ping::decode(ping) {
            Ping::Value(value) => tally.has(u32::try_from(value)?),
            Ping::Round(round) => {
                let kind = Some(node_message::Kind::Pong(wire::Pong {
                    nonce: round,
                    refused_agents: 0,
                }));
                if answers.send(wire::NodeMessage { kind }).await.is_err() {
                    break;
                }
            }
        }
    }
    Ok(())
}
