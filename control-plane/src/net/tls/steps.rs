//! Runs work that becomes ready in bulk in small steps, so that other tasks run in between.
//!
//! The scheduler runs ready tasks in order. After 600 handshakes that became ready at once, a task
//! waits for 600 steps of cryptography. Here only a few of them are ready, and the others queue.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker, ready};

use futures::task::AtomicWaker;
use tokio::sync::Semaphore;
use tokio_util::sync::PollSemaphore;

/// Set when the work is ready, with the task that runs it.
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

/// Runs `work`; each step takes a turn. The turn is returned when the task would run again, so
/// other ready tasks run first. Work that waits holds no turn. Cancel-safe if the work is.
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
        // Cleared before polling: a wake-up during the poll is another step.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::task::{JoinSet, yield_now};

    use super::*;

    #[tokio::test]
    async fn a_task_that_becomes_ready_does_not_wait_for_all_the_work() {
        let (turns, steps) = (Arc::new(Semaphore::new(2)), Arc::new(AtomicU32::new(0)));
        let mut work = JoinSet::new();
        for _ in 0..500 {
            let steps = Arc::clone(&steps);
            work.spawn(in_turn(Arc::clone(&turns), async move {
                for _ in 0..3 {
                    steps.fetch_add(1, Ordering::SeqCst);
                    yield_now().await;
                }
            }));
        }
        let (mut before, mut most) = (0, 0);
        for _ in 0..100 {
            yield_now().await;
            let now = steps.load(Ordering::SeqCst);
            (before, most) = (now, most.max(now - before));
        }
        assert!((1..=200).contains(&most), "{most} steps at once");
        work.join_all().await;
        assert_eq!(steps.load(Ordering::SeqCst), 1500);
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_waits_has_no_turn_and_goes_on_when_it_is_ready() {
        let turns = Arc::new(Semaphore::new(1));
        let (tell, told) = oneshot::channel();
        let waits = tokio::spawn(in_turn(Arc::clone(&turns), told));
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(turns.available_permits(), 1);
        assert_eq!(in_turn(Arc::clone(&turns), async { 1 }).await, 1);
        tell.send(2).unwrap();
        assert_eq!(waits.await.unwrap(), Ok(2));
        assert_eq!(turns.available_permits(), 1);
    }

    #[tokio::test]
    async fn work_that_is_given_up_gives_its_turn_back() {
        let turns = Arc::new(Semaphore::new(1));
        let busy = in_turn(Arc::clone(&turns), async {
            loop {
                yield_now().await;
            }
        });
        let some_steps = async {
            for _ in 0..10 {
                yield_now().await;
            }
        };
        tokio::select! {
            () = busy => {}
            () = some_steps => {}
        }
        assert_eq!(turns.available_permits(), 1);
    }
}
