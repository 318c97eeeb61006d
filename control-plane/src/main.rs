//! The control plane of Lockstep.

use lockstep_control_plane::KEPT;
use lockstep_control_plane::config::args::Args;
use lockstep_control_plane::config::settings::Settings;
use lockstep_control_plane::runtime;
use lockstep_control_plane::telemetry::{logging, panics};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tikv_jemallocator::Jemalloc;

/// Nearly all work is parsing: many small, short-lived objects.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Threads for blocking work. Once started, they stay ([`KEPT`]).
const BLOCKING: usize = 64;

fn main() -> anyhow::Result<()> {
    panics::end_the_process();
    without_huge_pages();
    with_all_files();
    let args = Args::from_command_line(std::env::args_os()).unwrap_or_else(|error| error.exit());
    logging::init(args.zap.format(args.log_format), args.zap.zap_log_level)?;
    let settings = Settings::new(args)?;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(workers())
        .max_blocking_threads(BLOCKING)
        .thread_keep_alive(KEPT)
        .enable_all()
        .build()?;
    drop(threads.spawn_blocking(|| ()));
    threads.block_on(runtime::run(settings))
}

/// Small objects on huge pages take nearly twice the memory. It does no harm if the kernel refuses.
fn without_huge_pages() {
    let _ = nix::sys::prctl::set_thp_disable(true);
}

/// Each daemon's stream is an open file, and a container often begins with a limit of 1,024. If the
/// limit cannot be raised, it stays.
fn with_all_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}

/// The threads mostly wait. More threads take memory and are no faster.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4))
}
