//! A thread for everything that follows the API server step by step: watches, the reconciles they
//! trigger, and the connections of both.
//!
//! An event is little work, and most of it is a chain: bytes to a line, a line to an object, an
//! object to a reconcile, a reconcile to a request. If several threads share the chain, every step
//! wakes another thread that finds nothing to do, which costs more than the work itself. Servers
//! and groups have thousands of streams to serve and use the threads of the main runtime. A step
//! that takes long delays all JobSets, so slow work runs elsewhere, and the process's health
//! depends on the thread's progress ([`Pulse`]).
//!
//! The Lease has a thread of its own: it is renewed no matter what keeps the others busy.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use lockstep_process::threads::KEEP_ALIVE;
use tokio::runtime::{self, EnterGuard, Handle};
use tokio_util::sync::{CancellationToken, DropGuard};

/// The niceness of a thread that yields to all others (nice(2)).
const BACKGROUND_NICE: i32 = 10;
/// The limit on each runtime's threads for blocking work.
const BLOCKING_THREADS: usize = 16;
/// How long the remaining work may take at shutdown.
const SHUTDOWN: Duration = Duration::from_secs(1);

/// The thread. Its tasks belong to the code that spawns them, and end before the thread does.
pub(crate) struct ApiThread {
    handle: Handle,
    end: DropGuard,
    thread: JoinHandle<()>,
    pulse: Pulse,
}

impl ApiThread {
    /// Starts a thread with this name.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(crate) fn start(name: &str) -> std::io::Result<Self> {
        Self::start_as(name, || {})
    }

    /// Starts a thread that yields to all others if there are not enough cores. Its blocking work
    /// does so too.
    ///
    /// # Errors
    /// There can be no more threads.
    pub(crate) fn start_behind(name: &str) -> std::io::Result<Self> {
        Self::start_as(name, || {
            // If the kernel refuses, the thread runs at the usual priority.
            let _ = rustix::process::setpriority_process(None, BACKGROUND_NICE);
        })
    }

    fn start_as(name: &str, begin: fn()) -> std::io::Result<Self> {
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            // This covers the threads for blocking work.
            .on_thread_start(begin)
            .max_blocking_threads(BLOCKING_THREADS)
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
            // A DNS lookup of the API server may take long, and nothing waits for it any more.
            runtime.shutdown_timeout(SHUTDOWN);
        })?;
        Ok(Self {
            handle,
            end: end.drop_guard(),
            thread,
            pulse,
        })
    }

    /// Tasks that are spawned while this guard is held run on the thread. Do not hold it across an
    /// await.
    pub(crate) fn enter(&self) -> EnterGuard<'_> {
        self.handle.enter()
    }

    /// A handle for spawning tasks on the thread.
    pub(crate) fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The thread's pulse.
    pub(crate) fn pulse(&self) -> Pulse {
        self.pulse.clone()
    }

    /// Ends the thread and drops the tasks that are left on it.
    pub(crate) async fn end(self) {
        drop(self.end);
        // The thread cannot have panicked: a panic ends the process.
        let _ = tokio::task::spawn_blocking(|| self.thread.join()).await;
    }
}

/// The interval between beats.
const BEAT: Duration = Duration::from_secs(1);
/// A thread without a beat for this long is stuck. Its longest step is a list of many objects,
/// which takes a second or two, and ten times as long with a tenth of a core. The kubelet probes
/// six more times before it restarts the container.
const STUCK: Duration = Duration::from_secs(60);

/// A heartbeat that a thread updates between its steps. Clones share it, and any thread can read
/// it.
#[derive(Clone, Debug)]
pub struct Pulse {
    start: Instant,
    /// Milliseconds from the start to the last beat.
    last: Arc<AtomicU64>,
}

impl Pulse {
    /// A pulse whose first beat is now.
    pub(crate) fn start() -> Self {
        Self {
            start: Instant::now(),
            last: Arc::default(),
        }
    }

    /// Beats until the runtime ends. Runs as a task on the monitored thread.
    async fn keep(self) {
        loop {
            let since = self.start.elapsed().as_millis();
            self.last
                .store(u64::try_from(since).unwrap_or(u64::MAX), Ordering::Relaxed);
            tokio::time::sleep(BEAT).await;
        }
    }

    /// How long the thread has been stuck at `now`; `None` if it makes progress.
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
    async fn tasks_and_their_children_run_on_one_thread() {
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
    async fn ending_the_thread_drops_its_tasks() {
        let api = ApiThread::start("api").expect("a thread");
        let left = api.handle().spawn(std::future::pending::<()>());
        api.end().await;
        assert!(left.await.unwrap_err().is_cancelled());
    }

    /// Waits until it beats, or no longer beats, as seen `in_seconds` from now.
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
