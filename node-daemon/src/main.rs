//! The node daemon's binary.

use std::time::Duration;

use clap::Parser as _;
use lockstep_node_daemon::args::Args;
use lockstep_node_daemon::{logging, panics, runtime};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Threads for what blocks.
const BLOCKING: usize = 16;
/// How long such a thread stays after its work, for ever as it were. Tokio panics when it needs such a thread, has none, and the node has no process ID left;
/// while there is one, work waits for it.
const KEPT: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

fn main() -> anyhow::Result<()> {
    panics::end_the_process();
    let args = Args::parse();
    logging::init(args.log_format)?;
    with_all_files();
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(BLOCKING)
        .thread_keep_alive(KEPT)
        .enable_all()
        .build()?;
    drop(threads.spawn_blocking(|| ()));
    threads.block_on(runtime::run(args))
}

/// Each agent's connection is an open file, and the limit that a container begins with is often 1,024: a few pods could use it up for all others. Where it
/// cannot be raised, it stays.
fn with_all_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
