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

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_process::threads::KEEP_ALIVE;
use tokio::runtime::{self, EnterGuard, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// How nice one is that gives way to all others (nice(2)).
const BEHIND: i32 = 10;
/// Threads for what blocks, of each.
const BESIDE: usize = 16;
/// How long what is left may take at the end.
const END: Duration = Duration::from_secs(1);

/// The thread. Its tasks belong to those who spawn them, and have ended before it does.
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

    /// Starts one that gives way to all others if there are not enough cores, with what it does
    /// beside.
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

    /// Its pulse.
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

/// How often it beats.
const BEAT: Duration = Duration::from_secs(1);
/// A thread without a beat for this time is stuck. Its longest step is a list of many objects,
/// which takes a second or two, and may take ten times as long with a tenth of a core; kubelet asks
/// six times more before it starts the container again.
const STUCK: Duration = Duration::from_secs(60);

/// A beat that a thread keeps up between its steps. Clones are the same one. Any thread can read
/// it.
#[derive(Clone, Debug)]
pub struct Pulse {
    start: Instant,
    /// Milliseconds from the start to the last beat.
    last: Arc<AtomicU64>,
}

impl Pulse {
    /// One that beats now for the first time.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            last: Arc::default(),
        }
    }

    /// Beats, as a task of the thread that is watched, for as long as that lives.
    async fn keep(self) {
        loop {
            let since = self.start.elapsed().as_millis();
            self.last
                .store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
            tokio::time::sleep(BEAT).await;
        }
    }

    /// For how long the thread has been stuck at this time. `None`: it gets on.
    pub(crate) fn stuck_for(&self, now: Instant) -> Option<Duration> {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let silent = now.saturating_duration_since(self.start).saturating_sub(last);
        (silent > STUCK).then_some(silent)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;

    use super::*;

    fn here() -> Option<String> {
        thread::current().name().map(str::to_owned)
    }

    #[tokio::test]
    async fn what_is_spawned_in_it_and_what_that_spawns_runs_on_one_thread() {
        let api = ApiThread::start("api").expect("a thread");
        let spawned = {
            let _on = api.enter();
            tokio::spawn(async {
                let inner = tokio::spawn(async { here() });
                (here(), inner.await.unwrap())
            })
        };
        let on = Some("api".to_owned());
        assert_eq!(spawned.await.unwrap(), (on.clone(), on));
        assert_ne!(here().as_deref(), Some("api"));
        api.end().await;
    }

    #[tokio::test]
    async fn its_end_takes_what_is_left_with_it() {
        let api = ApiThread::start("api").expect("a thread");
        let left = api.handle().spawn(std::future::pending::<()>());
        api.end().await;
        assert!(left.await.unwrap_err().is_cancelled());
    }

    /// Waits until it beats, or no longer beats, as seen in so many seconds.
    async fn wait_until(pulse: &Pulse, in_seconds: u64, is_stuck: bool) {
        let look = async {
            let later = |seconds| Instant::now() + Duration::from_secs(seconds);
            while pulse.stuck_for(later(in_seconds)).is_some() != is_stuck {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), look)
            .await
            .expect("in time");
    }

    #[tokio::test]
    async fn a_thread_that_is_held_up_is_known_to_be_stuck_until_it_gets_on() {
        let api = ApiThread::start("api").expect("a thread");
        let pulse = api.pulse();
        assert_eq!(pulse.stuck_for(Instant::now()), None);
        let (go_on, held) = mpsc::channel::<()>();
        let (begin, begun) = mpsc::channel();
        let holds_up = api.handle().spawn(async move {
            begin.send(()).unwrap();
            // A step that does not end.
            held.recv().unwrap_err();
        });
        begun.recv().unwrap();
        let last = Instant::now();
        let after = |seconds| pulse.stuck_for(last + Duration::from_secs(seconds));
        assert_eq!(after(50), None);
        assert!(after(62).is_some_and(|silent| silent > Duration::from_secs(60)));
        // Nothing else changes that.
        wait_until(&pulse, 59, true).await;
        drop(go_on);
        wait_until(&pulse, 59, false).await;
        holds_up.await.unwrap();
        api.end().await;
    }
}
