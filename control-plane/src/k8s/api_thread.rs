//! One thread for all that follows the API server step by step: watches, the looks that they give
//! rise to, and the connections of both.
//!
//! An event is little work, and most of it is a chain: bytes to a line, a line to an object, an
//! object to a look, a look to a request. Where several threads may take each link, every step
//! wakes another one that finds nothing to do, which costs more than the work. Servers and groups,
//! which have thousands of streams to serve, have the threads of the runtime. A step that takes
//! long holds up all JobSets: what may take long runs elsewhere, and whether the thread gets on is
//! a part of the process's health ([`Pulse`]).
//!
//! The Lease has one of its own: whatever keeps all others busy, it is renewed.

mod pulse;

use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use lockstep_process::threads::KEEP_ALIVE;
use tokio::runtime::{self, EnterGuard, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use pulse::Pulse;

#[cfg(test)]
mod tests;

/// How nice one is that gives way to all others (nice(2)).
const BEHIND: i32 = 10;
/// Threads for what blocks, of each.
const BESIDE: usize = 16;
/// How long what is left may take at the end.
const END: Duration = Duration::from_secs(1);

/// The thread. Its tasks belong to whoever spawns them, and have ended before it does.
pub(crate) struct ApiThread {
    handle: Handle,
    end: DropGuard,
    thread: JoinHandle<()>,
    pulse: Pulse,
}

impl ApiThread {
    /// Starts one of this name.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(crate) fn start(name: &str) -> std::io::Result<Self> {
        Self::start_as(name, || {})
    }

    /// Starts one that gives way to all others where there are not enough cores, with what it does beside.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(crate) fn start_behind(name: &str) -> std::io::Result<Self> {
        Self::start_as(name, || {
            // Where the kernel refuses, it is one like the others.
            let _ = rustix::process::setpriority_process(None, BEHIND);
        })
    }

    fn start_as(name: &str, begin: fn()) -> std::io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            // Of threads for what blocks.
            .on_thread_start(begin)
            .max_blocking_threads(BESIDE)
            .thread_keep_alive(KEEP_ALIVE)
            .build()?;
        drop(runtime.spawn_blocking(|| ()));
        let handle = runtime.handle().clone();
        let end = CancellationToken::new();
        let until = end.clone();
        let pulse = Pulse::start();
        runtime.spawn(pulse.clone().keep());
        let thread = Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            begin();
            runtime.block_on(until.cancelled());
            // A look-up of the API server's name may take long, and nobody waits for it any more.
            runtime.shutdown_timeout(END);
        })?;
        Ok(Self {
            handle,
            end: end.drop_guard(),
            thread,
            pulse,
        })
    }

    /// What is spawned while this is held runs there. Not to be held while something is awaited.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// For those who spawn tasks on it.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Whether it gets on.
    pub(crate) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Ends it, with what is left on it.
    pub(crate) async fn end(self) {
        drop(self.end);
        // It cannot have panicked: that ends the process.
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}
