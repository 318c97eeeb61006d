//! The control plane of Lockstep.

use lockstep_control_plane::config::args::Args;
use lockstep_control_plane::config::settings::Settings;
use lockstep_control_plane::runtime;
use lockstep_control_plane::telemetry::logging;
use lockstep_process::threads;
use tikv_jemallocator::Jemalloc;

/// Nearly all work is parsing: many small, short-lived objects.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Threads for blocking work. Once started, they stay ([`threads::KEEP_ALIVE`]).
const BLOCKING: usize = 64;

fn main() -> anyhow::Result<()> {
    threads::abort_on_panic();
    without_huge_pages();
    threads::raise_open_files();
    let args = Args::from_command_line(std::env::args_os()).unwrap_or_else(|error| error.exit());
    logging::init(args.zap.format(args.log_format), args.zap.zap_log_level)?;
    let settings = Settings::new(args)?;
    rustls::crypto::ring::default_provider()
        .install_default()
        .map_err(|_| anyhow::anyhow!("a TLS provider is installed already"))?;
    threads::runtime(workers(), BLOCKING)?.block_on(runtime::run(settings))
}

/// Small objects on huge pages take nearly twice the memory. It does no harm if the kernel refuses.
fn without_huge_pages() {
    let _ = nix::sys::prctl::set_thp_disable(true);
}

/// The threads mostly wait. More threads take memory and are no faster.
fn workers() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(4))
}
