//! The node daemon's binary.

use clap::Parser as _;
use lockstep_node_daemon::args::Args;
use lockstep_node_daemon::{logging, runtime};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    logging::init(args.log_format)?;
    runtime::run(args).await
}
