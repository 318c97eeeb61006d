//! The node daemon's binary.

use clap::Parser as _;
use lockstep_node_daemon::args::Args;
use lockstep_node_daemon::runtime;
use lockstep_process::{logging, threads};
use tracing_subscriber::layer::Identity;

/// Threads for tasks.
const WORKERS: usize = 2;
/// Threads for blocking work.
const BLOCKING: usize = 16;

fn main() -> anyhow::Result<()> {
    threads::abort_on_panic();
    let args = Args::parse();
    logging::init(args.log_format, logging::filter("info")?, Identity::new())?;
    threads::raise_open_files();
    threads::runtime(WORKERS, BLOCKING)?.block_on(runtime::run(args))
}
