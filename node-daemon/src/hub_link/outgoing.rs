//! What a daemon sends on one stream: the Hello, and after its answer urgent messages first, then
//! reports.
//!
//! Promises: a message is built only when gRPC takes it, and at most one waits there for a slow
//! hub, so the next one is up to date. Reports stay below the rate that a hub accepts from a node,
//! so none waits at the hub behind reports that a process posing as an agent has caused. A stream
//! that is over takes nothing from the outbox.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use lockstep_process::rate_limit::{Rate, RateLimit};
use lockstep_proto::node::v1 as wire;
use lockstep_proto::node::v1::node_message::Kind;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::convert;
use crate::worker::outbox::{Batch, Reader};

/// States per Report: far below the largest gRPC message.
const BATCH: usize = 1000;

/// Rate of reports: half of what a hub accepts. What changes meanwhile is in the next one.
const REPORTS: Rate = Rate {
    burst: 32,
    every: Duration::from_millis(10),
};

/// Queues the messages that go before reports. The stream ends when this is dropped.
pub(super) struct MessageQueue {
    urgent: Arc<Urgent>,
    closed: CancellationToken,
}

/// The messages of one stream, as gRPC takes them.
pub(super) struct Outgoing {
    urgent: Arc<Urgent>,
    reports: Reports,
    _closed: DropGuard,
}

/// Reads changes from the outbox, at the rate of [`REPORTS`].
struct Reports {
    reader: Reader,
    limit: RateLimit,
    /// Runs until the next report may be sent.
    pause: Option<Pin<Box<Sleep>>>,
}

impl Reports {
    /// As [`Reader::poll_take`].
    fn poll_take(&mut self, cx: &mut Context<'_>) -> Poll<Option<Batch>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
        }
        self.pause = None;
        let taken = ready!(self.reader.poll_take(BATCH, cx));
        if taken.is_some() {
            self.limit.take();
            let next = self.limit.next();
            self.pause = (next > Instant::now()).then(|| Box::pin(sleep_until(next)));
        }
        Poll::Ready(taken)
    }
}

#[derive(Default)]
struct Urgent(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    hello: Option<wire::Hello>,
    welcome: bool,
    pong: Option<wire::Pong>,
    token: Option<wire::Credentials>,
    /// States that did not fit into the Hello.
    rest: Vec<wire::WorkerState>,
    /// Goes with the next Report, at once.
    health: Option<wire::Health>,
    over: bool,
    /// The task that sends, while there is nothing to send.
    task: Option<Waker>,
}

/// Both ends of a stream's messages. It begins with this Hello, followed by the states that did not
/// fit into it.
pub(super) fn open(
    hello: wire::Hello,
    rest: Vec<wire::WorkerState>,
    reports: Reader,
) -> (MessageQueue, Outgoing) {
    let urgent = Arc::new(Urgent(Mutex::new(Waiting {
        hello: Some(hello),
        rest,
        ..Waiting::default()
    })));
    let closed = CancellationToken::new();
    let outgoing = Outgoing {
        urgent: Arc::clone(&urgent),
        reports: Reports {
            reader: reports,
            limit: RateLimit::new(REPORTS),
            pause: None,
        },
        _closed: closed.clone().drop_guard(),
    };
    (MessageQueue { urgent, closed }, outgoing)
}

impl MessageQueue {
    /// The hub has answered the Hello: more may be sent.
    pub(super) fn welcomed(&self) {
        self.urgent.change(|waiting| waiting.welcome = true);
    }

    /// Queues the answer to a ping, in place of answers that were not sent yet.
    pub(super) fn pong(&self, pong: wire::Pong) {
        self.urgent.change(|waiting| waiting.pong = Some(pong));
    }

    /// Queues a new token.
    pub(super) fn token(&self, token: wire::Credentials) {
        self.urgent.change(|waiting| waiting.token = Some(token));
    }

    /// Queues the node's health.
    pub(super) fn health(&self, health: wire::Health) {
        self.urgent.change(|waiting| waiting.health = Some(health));
    }

    /// Resolves once the messages are no longer taken. Cancel safe.
    pub(super) async fn closed(&self) {
        self.closed.cancelled().await;
    }
}

impl Drop for MessageQueue {
    fn drop(&mut self) {
        self.urgent.change(|waiting| waiting.over = true);
    }
}

impl Urgent {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        change(&mut waiting);
        let task = waiting.task.take();
        drop(waiting);
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl Waiting {
    /// The next message, if there is one now; `None` at the end of the stream.
    fn poll_take(&mut self, reports: &mut Reports, cx: &mut Context<'_>) -> Poll<Option<Kind>> {
        if self.over {
            return Poll::Ready(None);
        }
        if let Some(hello) = self.hello.take() {
            return Poll::Ready(Some(Kind::Hello(hello)));
        }
        if !self.welcome {
            return Poll::Pending;
        }
        if let Some(kind) = self.take_urgent() {
            // The hub paces with its pings what it need not know soon.
            if matches!(kind, Kind::Pong(_)) {
                reports.reader.recall();
            }
            return Poll::Ready(Some(kind));
        }
        let Batch { states, gone } = match reports.poll_take(cx) {
            Poll::Ready(Some(taken)) => taken,
            Poll::Ready(None) => return Poll::Ready(None),
            Poll::Pending if self.health.is_some() => Batch::default(),
            Poll::Pending => return Poll::Pending,
        };
        Poll::Ready(Some(Kind::Report(wire::Report {
            workers: states.into_iter().map(convert::worker_state).collect(),
            health: self.health.take(),
            gone: gone.into_iter().map(convert::incarnation_to).collect(),
        })))
    }

    fn take_urgent(&mut self) -> Option<Kind> {
        if let Some(pong) = self.pong.take() {
            return Some(Kind::Pong(pong));
        }
        if let Some(token) = self.token.take() {
            return Some(Kind::Credentials(token));
        }
        if self.rest.is_empty() {
            return None;
        }
        let workers = self.rest.drain(..self.rest.len().min(BATCH)).collect();
        Some(Kind::Report(wire::Report {
            workers,
            health: None,
            gone: Vec::new(),
        }))
    }
}

impl Stream for Outgoing {
    type Item = wire::NodeMessage;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Self { urgent, reports, .. } = self.get_mut();
        let mut waiting = urgent.lock();
        let taken = waiting.poll_take(reports, cx);
        if taken.is_pending() {
            waiting.task = Some(cx.waker().clone());
        }
        taken.map(|kind| kind.map(|kind| wire::NodeMessage { kind: Some(kind) }))
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use tokio_stream::StreamExt as _;

    use super::*;
    use crate::worker::outbox::{Outbox, tests::state};

    fn beginning(outbox: &Arc<Outbox>) -> (MessageQueue, Outgoing) {
        open(
            wire::Hello::default(),
            vec![wire::WorkerState::default(); BATCH + 1],
            outbox.reader(),
        )
    }

    async fn next(outgoing: &mut Outgoing) -> Kind {
        outgoing.next().await.unwrap().kind.unwrap()
    }

    #[tokio::test]
    async fn urgent_messages_go_before_reports_and_health_goes_with_reports() {
        let outbox = Arc::new(Outbox::default());
        let (queue, mut outgoing) = beginning(&outbox);
        outbox.put([state("a", 1)]);
        queue.health(wire::Health::default());
        queue.pong(wire::Pong::default());
        assert!(matches!(next(&mut outgoing).await, Kind::Hello(_)));
        assert!(outgoing.next().now_or_never().is_none());
        queue.welcomed();
        assert!(matches!(next(&mut outgoing).await, Kind::Pong(_)));
        for (workers, has_health) in [(BATCH, false), (1, false), (1, true)] {
            let Kind::Report(report) = next(&mut outgoing).await else {
                panic!("not a report");
            };
            assert_eq!(
                (report.workers.len(), report.health.is_some()),
                (workers, has_health)
            );
        }
        queue.health(wire::Health::default());
        let Kind::Report(report) = next(&mut outgoing).await else {
            panic!("not a report");
        };
        assert_eq!((report.workers.len(), report.health.is_some()), (0, true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_busy_worker_does_not_delay_the_state_of_another() {
        let outbox = Arc::new(Outbox::default());
        let (queue, mut outgoing) = open(wire::Hello::default(), Vec::new(), outbox.reader());
        queue.welcomed();
        next(&mut outgoing).await;
        let (begun, mut reports, mut revision) = (Instant::now(), 0, 0);
        while begun.elapsed() < Duration::from_secs(1) {
            revision += 1;
            outbox.put([state("loud", revision)]);
            // As many as the rate allows.
            while outgoing.next().now_or_never().is_some() {
                reports += 1;
            }
            tokio::time::advance(Duration::from_millis(1)).await;
        }
        assert!((100..=100 + REPORTS.burst).contains(&reports), "{reports}");
        outbox.put([state("loud", revision + 1), state("quiet", 1)]);
        let asked = Instant::now();
        let Kind::Report(report) = next(&mut outgoing).await else {
            panic!("not a report");
        };
        assert_eq!(report.workers.len(), 2);
        assert!(asked.elapsed() <= REPORTS.every, "{:?}", asked.elapsed());
    }

    #[tokio::test]
    async fn a_stream_that_is_over_takes_nothing() {
        let outbox = Arc::new(Outbox::default());
        let (queue, mut over) = beginning(&outbox);
        drop(queue);
        outbox.put([state("a", 1)]);
        assert_eq!(over.next().await, None);
        // One that another has replaced takes nothing either, over or not.
        let (former, mut replaced) = open(wire::Hello::default(), Vec::new(), outbox.reader());
        former.welcomed();
        assert!(matches!(next(&mut replaced).await, Kind::Hello(_)));
        let (another, mut present) = open(wire::Hello::default(), Vec::new(), outbox.reader());
        another.welcomed();
        assert_eq!(replaced.next().await, None);
        assert!(matches!(next(&mut present).await, Kind::Hello(_)));
        assert!(matches!(next(&mut present).await, Kind::Report(_)));
    }

    #[tokio::test]
    async fn the_queue_learns_that_its_messages_are_no_longer_taken() {
        let (queue, outgoing) = beginning(&Arc::default());
        drop(outgoing);
        queue.closed().await;
    }
}
