//! Threads and open files of a process that serves many peers.

use std::io;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

/// How long a thread for blocking work stays idle before it ends: in effect for ever.
///
/// Tokio panics when it needs such a thread, has none, and the node has no process ID left. While
/// there is one thread, work waits for it.
pub const KEEP_ALIVE: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// A runtime with `workers` threads for tasks and at most `blocking` threads for blocking work, of
/// which the first is started at once.
///
/// # Errors
/// When a thread cannot be started.
pub fn runtime(workers: usize, blocking: usize) -> io::Result<Runtime> {
    let runtime = Builder::new_multi_thread()
        .worker_threads(workers)
        .max_blocking_threads(blocking)
        .thread_keep_alive(KEEP_ALIVE)
        .enable_all()
        .build()?;
    drop(runtime.spawn_blocking(|| ()));
    Ok(runtime)
}

/// Raises the limit on open files as far as the kernel allows.
///
/// Every connection is an open file, and a container often starts with a limit of 1,024: a few
/// peers could use it up for all others. If the limit cannot be raised, it stays as it is.
pub fn raise_open_files() {
    if let Ok((_, most)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let _ = setrlimit(Resource::RLIMIT_NOFILE, most, most);
    }
}
