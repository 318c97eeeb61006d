//! `lockstep-scale`: measures one control plane with thousands of nodes, beside the design with
//! Valkey, in one run. `docs/scaling.md` says what is compared.

mod bare;
mod bench;
mod child;
mod design;
mod fleet;
mod group;
mod groups;
mod hub;
mod message;
mod names;
mod output;
mod samples;
mod system;
mod tally;
mod token;
mod valkey;
mod worker;

use anyhow::Result;
use clap::{Parser, Subcommand};
use tikv_jemallocator::Jemalloc;

/// The allocator of the control plane, which one of the processes simulates.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Measures Lockstep with thousands of simulated nodes.
#[derive(Debug, Parser)]
#[command(name = "lockstep-scale", version)]
struct Args {
    #[command(subcommand)]
    command: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Pushes, restarts, memory and reconnects of both designs. Writes target/bench/scale.json and
    /// scale.svg
    Run(bench::Args),
    /// Many groups, some of which fail at the same time. Writes target/bench/groups.json
    Groups(groups::Args),
    /// One JobSet on a real API server, with pods on hollow nodes: restarts in place and
    /// recreations. Writes target/bench/system.json
    System(system::Args),
    /// The control plane of the benchmark
    #[command(hide = true)]
    Hub(hub::Args),
    /// The nodes of the benchmark
    #[command(hide = true)]
    Fleet(fleet::Args),
    /// The orchestrator of the design with Valkey
    #[command(hide = true)]
    Orchestrator(valkey::orchestrator::Args),
    /// The server of bare streams
    #[command(hide = true)]
    BareServer(bare::Args),
    /// The clients of bare streams
    #[command(hide = true)]
    BareClients(bare::Args),
    /// The agents of the design with Valkey
    #[command(hide = true)]
    Agents(valkey::agents::Args),
}

fn main() -> Result<()> {
    // As in the control plane, for all processes.
    let _ = nix::sys::prctl::set_thp_disable(true);
    let args = Args::parse();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4)))
        .enable_all()
        .build()?
        .block_on(run(args.command))
}

async fn run(action: Action) -> Result<()> {
    match action {
        Action::Run(args) => bench::run(args).await,
        Action::Groups(args) => groups::run(args).await,
        Action::System(args) => Box::pin(system::run(args)).await,
        Action::Hub(args) => Box::pin(hub::run(args)).await,
        Action::Fleet(args) => fleet::run(args).await,
        Action::Orchestrator(args) => valkey::orchestrator::run(args).await,
        Action::BareServer(args) => bare::server::run(args).await,
        Action::BareClients(args) => bare::clients::run(args).await,
        Action::Agents(args) => valkey::agents::run(args).await,
    }
}
