//! The control plane in its own process: the real hub over TLS, and for restarts the real
//! coordinator of each group ([`crate::group`]). Only the API server is left out.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lockstep_control_plane::hub::{Authenticator, Gate, Refusals, Registry, Role, serve_from_dir};
use lockstep_control_plane::leader::LeaderAddress;
use lockstep_core::restart::{Epoch, Generation};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::group::{Group, Shape};
use crate::message::{BenchEvent, Order, now, orders, say};
use crate::token::{self, Cluster};

/// Capacity of a group's queue of orders.
const ORDERS: usize = 64;
/// How often the number of connections is checked.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Folder with the CA and the key of tokens
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    port: u16,
    #[arg(long)]
    nodes: usize,
    /// Workers of each node
    #[arg(long)]
    each: usize,
    #[arg(long, default_value_t = 1)]
    groups: usize,
    /// Workers of each group [default: all workers]
    #[arg(long)]
    group_size: Option<usize>,
    /// Milliseconds that a write to the API server takes
    #[arg(long)]
    write_ms: u64,
    /// The generation that the workers run, as the API server has it
    #[arg(long, default_value_t = 0)]
    generation: u64,
}

pub(crate) async fn run(args: Args) -> Result<()> {
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, args.port))
        .await
        .context("the hub's port")?;
    let cluster = || Cluster(args.dir.clone());
    let gate = Gate {
        authenticator: Authenticator::new(token::expected(), cluster(), cluster()),
        refusals: Arc::<Refusals>::default(),
        // The limit is per address. Here all nodes share one address, so there is none.
        unknown_connections: usize::MAX,
    };
    let registry = Registry::new(Epoch(1));
    let role = Role::new(LeaderAddress::unknown());
    let end = CancellationToken::new();
    let (leading, term, terms) = (Arc::clone(&role), end.clone(), Arc::clone(&registry));
    tokio::spawn(async move { leading.lead(terms, term).await });
    let mut groups = JoinSet::new();
    let mut queues = Vec::new();
    for group in 0..args.groups {
        let shape = Shape {
            group,
            workers: args.group_size.unwrap_or(args.nodes * args.each),
            each: args.each,
        };
        let (tell, orders) = mpsc::channel(ORDERS);
        queues.push(tell);
        let write = Duration::from_millis(args.write_ms);
        let group = Group::new(Arc::clone(&registry), shape, write, Generation(args.generation));
        groups.spawn(group.run(orders));
    }
    let serve = serve_from_dir(listener, &args.dir, role, gate, end.clone());
    say(BenchEvent::Ready);
    tokio::select! {
        served = serve => served,
        ended = pass_on(&registry, &queues) => ended,
        Some(ended) = groups.join_next() => ended?,
    }
}

/// Passes orders on to all groups, until the benchmark is gone.
async fn pass_on(registry: &Registry, groups: &[mpsc::Sender<Order>]) -> Result<()> {
    let mut orders = orders();
    while let Some(order) = orders.recv().await {
        if let Order::Await { connected } = order {
            while registry.connected() < connected {
                tokio::time::sleep(CHECK_INTERVAL).await;
            }
            say(BenchEvent::Connected { at: now() });
            continue;
        }
        for group in groups {
            group.send(order).await.context("a group has ended")?;
        }
    }
    Ok(())
}
