//! The node daemon's binary.

use clap::Parser as _;
use lockstep_node_daemon::args::Args;
use lockstep_node_daemon::{logging, panics, runtime};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    panics::end_the_process();
    let args = Args::parse();
    logging::init(args.log_format)?;
    with_all_files();
    runtime::run(args).await
}

/// Each agent's connection is an open file, and the limit that a container begins with is often 1,024: a few pods could use it up for all others. Where it
/// cannot be raised, it stays.
fn with_all_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
