//! The threads and open files of a process that serves many peers, and what a panic in it does.
//!
//! A task that panics ends the process, as in release builds, where panics abort. Otherwise nothing
//! would look after what the task owned. The next process starts from what is durable.

use std::time::Duration;
use std::{io, panic, process};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::runtime::{Builder, Runtime};

/// How long a thread for blocking work stays idle before it ends: in effect forever.
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

/// Makes a panic in any thread end this process, after it is reported.
pub fn abort_on_panic() {
    let report = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        report(panic);
        process::abort();
    }));
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;
    use std::{env, future};

    use nix::sys::signal::Signal;

    use super::*;

    const NAME: &str = "threads::tests::a_task_that_panics_ends_the_process";
    const CHILD: &str = "LOCKSTEP_TEST_PANICS";

    #[test]
    fn a_task_that_panics_ends_the_process() {
        if env::var_os(CHILD).is_some() {
            return panic_in_a_task();
        }
        let this = env::current_exe().unwrap();
        let child = Command::new(this)
            .args([NAME, "--exact", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .unwrap();
        let output = String::from_utf8_lossy(&child.stderr);
        assert_eq!(child.status.signal(), Some(Signal::SIGABRT as i32), "{output}");
        assert!(output.contains("a task of many"), "{output}");
    }

    fn panic_in_a_task() {
        abort_on_panic();
        let runtime = Builder::new_multi_thread().build().unwrap();
        runtime.spawn(async { panic!("a task of many") });
        runtime.block_on(future::pending::<()>());
    }
}
