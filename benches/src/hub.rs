//! The control plane's side, in a process of its own: the real hub over TLS, and for restarts the real coordinator ([`crate::group`]). What is left
//! out of a control plane is everything about the API server.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use lockstep_control_plane::hub::{Authenticator, Gate, Refusals, Registry, Role, serve_from_dir};
use lockstep_control_plane::lease::Whereabouts;
use lockstep_core::restart::Epoch;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::group::{Group, Shape};
use crate::message::{News, now, orders, say};
use crate::token::{self, Cluster};

/// How often it is looked whether all are connected.
const LOOK: Duration = Duration::from_millis(10);

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where the CA and the key of tokens are
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    port: u16,
    #[arg(long)]
    nodes: usize,
    /// Workers of each node
    #[arg(long)]
    each: usize,
    /// Milliseconds that a write to the API server takes
    #[arg(long)]
    write_ms: u64,
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
        // As in a control plane that is told nothing else: here all nodes have one address.
        strangers: 256,
    };
    let registry = Registry::new(Epoch(1));
    let role = Role::new(Whereabouts::unknown());
    let end = CancellationToken::new();
    let (leading, term, terms) = (Arc::clone(&role), end.clone(), Arc::clone(&registry));
    tokio::spawn(async move { leading.lead(terms, term).await });
    let shape = Shape {
        nodes: args.nodes,
        each: args.each,
    };
    let write = Duration::from_millis(args.write_ms);
    let group = Group::new(Arc::clone(&registry), shape, write);
    let connected = async |count: usize| {
        while registry.connected() < count {
            tokio::time::sleep(LOOK).await;
        }
        say(News::Connected { at: now() });
    };
    let serve = serve_from_dir(listener, &args.dir, role, gate, end.clone());
    say(News::Ready);
    tokio::select! {
        served = serve => served,
        ended = group.run(orders(), connected) => ended,
    }
}
