//! Much work that becomes ready at once, in small steps between which other tasks go on.
//!
//! A scheduler takes ready tasks in the order in which they became ready. After 600 handshakes that became ready at the same time a task waits for 600 steps of
//! cryptography. Here a few of them are ready, and the others wait in a line.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use futures::task::AtomicWaker;
use tokio::sync::Semaphore;
use tokio_util::sync::PollSemaphore;

#[cfg(test)]
mod tests;

/// Whether the work has something to do, and the task that does it.
#[derive(Default)]
struct Ready {
    is_ready: AtomicBool,
    task: AtomicWaker,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.is_ready.store(true, Ordering::SeqCst);
        self.task.wake();
    }
}

/// Does `work`, of which each step takes a turn. A turn is given back when the task would have run again: until then others that are ready have run. Work that
/// waits for something has no turn. Cancel-safe if the work is.
pub(super) async fn in_turn<T>(turns: Arc<Semaphore>, work: impl Future<Output = T>) -> T {
    let mut turns = PollSemaphore::new(turns);
    let mut work = pin!(work);
    let ready = Arc::new(Ready::default());
    ready.is_ready.store(true, Ordering::SeqCst);
    let waker = Waker::from(Arc::clone(&ready));
    let mut turn = None;
    poll_fn(move |cx| {
        ready.task.register(cx.waker());
        drop(turn.take());
        if !ready.is_ready.load(Ordering::SeqCst) {
            return Poll::Pending;
        }
        let taken = ready!(turns.poll_acquire(cx));
        // Before it is polled: what becomes ready meanwhile is another step.
        ready.is_ready.store(false, Ordering::SeqCst);
        let done = work.as_mut().poll(&mut Context::from_waker(&waker));
        if done.is_pending() {
            turn = taken;
            cx.waker().wake_by_ref();
        }
        done
    })
    .await
}
