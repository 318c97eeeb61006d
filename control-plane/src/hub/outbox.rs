//! The sending side of one node's stream: the newest desired state per group, never a backlog.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use lockstep_core::restart::Epoch;
use lockstep_proto::node::v1::{self as pb, hub_message::Kind};
use prost::Message as _;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// Time between two pings. Both sides notice a dead peer by them, and a daemon reports after them
/// what need not be known soon.
const PING_EVERY: Duration = Duration::from_secs(10);

/// Groups in one Desired message.
const GROUPS_PER_MESSAGE: usize = 256;

/// Bytes in one Desired message with more than one group. A daemon accepts 16 MiB.
const MESSAGE: usize = 2 << 20;

/// What one node has yet to receive.
#[derive(Default)]
pub struct Outbox {
    pending: Mutex<Pending>,
    /// Cancelled by [`Outbox::close`].
    closed: CancellationToken,
}

#[derive(Default)]
struct Pending {
    welcome: Option<pb::Welcome>,
    /// Serial of the newest credentials that were accepted.
    accepted: Option<u64>,
    groups: BTreeMap<String, Item>,
    draining: bool,
    closed: bool,
    /// The error that ends the stream, if there is one.
    failure: Option<Status>,
    /// The sending task, while it has nothing to send.
    sender: Option<Waker>,
}

enum Item {
    Desired(Arc<pb::Group>),
    Forget(Epoch),
}

impl Outbox {
    /// An outbox whose first message is the welcome.
    #[must_use]
    pub fn new(welcome: pb::Welcome) -> Arc<Self> {
        let pending = Pending {
            welcome: Some(welcome),
            ..Pending::default()
        };
        Arc::new(Self {
            pending: Mutex::new(pending),
            closed: CancellationToken::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut Pending)) {
        let mut pending = self.lock();
        change(&mut pending);
        let sender = pending.sender.take();
        drop(pending);
        if let Some(sender) = sender {
            sender.wake();
        }
    }

    /// Replaces what is pending for the group.
    pub fn desired(&self, group: Arc<pb::Group>) {
        self.change(|pending| {
            pending.groups.insert(group.uid.clone(), Item::Desired(group));
        });
    }

    /// Replaces what is pending for the group.
    pub fn forget(&self, uid: &str, epoch: Epoch) {
        self.change(|pending| {
            pending.groups.insert(uid.to_owned(), Item::Forget(epoch));
        });
    }

    /// Tells the daemon that its credentials with this serial are in use.
    pub fn accepted(&self, serial: u64) {
        self.change(|pending| pending.accepted = Some(serial));
    }

    /// Asks the daemon to reconnect, then ends the stream.
    pub fn drain(&self) {
        self.change(|pending| pending.draining = true);
    }

    /// Ends the stream because another one has replaced it.
    pub fn close(&self) {
        self.change(|pending| pending.closed = true);
        self.closed.cancel();
    }

    /// Resolves once another stream has replaced this one. Cancel-safe.
    pub fn closed(&self) -> impl Future<Output = ()> + Send + 'static {
        self.closed.clone().cancelled_owned()
    }

    /// Ends the stream with an error.
    pub fn fail(&self, status: Status) {
        self.change(|pending| {
            pending.failure = Some(status);
            pending.closed = true;
        });
    }

    /// The next message, if there is one now.
    #[must_use]
    pub fn take(&self) -> NextMessage {
        self.lock().take()
    }

    /// The same. If there is none now, the task is woken once there may be one. For one task only.
    fn poll_take(&self, cx: &Context<'_>) -> NextMessage {
        let mut pending = self.lock();
        let taken = pending.take();
        if matches!(taken, NextMessage::Nothing) {
            pending.sender = Some(cx.waker().clone());
        }
        taken
    }
}

impl Pending {
    fn take(&mut self) -> NextMessage {
        if self.closed {
            return NextMessage::Closed;
        }
        if let Some(welcome) = self.welcome.take() {
            return NextMessage::Message(Kind::Welcome(welcome));
        }
        if let Some(serial) = self.accepted.take() {
            return NextMessage::Message(Kind::Accepted(pb::Accepted { serial }));
        }
        let mut groups = Vec::new();
        let mut size = 0;
        while groups.len() < GROUPS_PER_MESSAGE {
            match self.groups.pop_first() {
                Some((uid, Item::Desired(group))) => {
                    size += group.encoded_len();
                    if size > MESSAGE && !groups.is_empty() {
                        self.groups.insert(uid, Item::Desired(group));
                        break;
                    }
                    groups.push(Arc::unwrap_or_clone(group));
                }
                Some((uid, Item::Forget(epoch))) if groups.is_empty() => {
                    return NextMessage::Message(Kind::Forget(pb::Forget {
                        group_uid: uid,
                        epoch: epoch.0,
                    }));
                }
                Some((uid, forget @ Item::Forget(_))) => {
                    self.groups.insert(uid, forget);
                    break;
                }
                None => break,
            }
        }
        if !groups.is_empty() {
            return NextMessage::Message(Kind::Desired(pb::Desired { groups }));
        }
        if self.draining {
            self.closed = true;
            return NextMessage::Message(Kind::Drain(pb::Drain {}));
        }
        NextMessage::Nothing
    }
}

/// The messages of a stream: those of the outbox, and pings between them.
pub(super) struct Outgoing {
    outbox: Arc<Outbox>,
    /// When a ping is due.
    ping: Pin<Box<Sleep>>,
    pings: u64,
}

impl Outgoing {
    /// The messages of this outbox, from now on.
    #[must_use]
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        Self {
            outbox,
            ping: Box::pin(sleep_until(Instant::now() + PING_EVERY)),
            pings: 0,
        }
    }

    /// A ping, once it is due.
    fn poll_ping(&mut self, cx: &mut Context<'_>) -> Poll<Kind> {
        ready!(self.ping.as_mut().poll(cx));
        self.ping.as_mut().reset(Instant::now() + PING_EVERY);
        self.pings += 1;
        Poll::Ready(Kind::Ping(pb::Ping { nonce: self.pings }))
    }
}

impl Stream for Outgoing {
    type Item = Result<pb::HubMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let kind = match self.outbox.poll_take(cx) {
            NextMessage::Message(kind) => kind,
            NextMessage::Closed => return Poll::Ready(self.outbox.lock().failure.take().map(Err)),
            NextMessage::Nothing => ready!(self.poll_ping(cx)),
        };
        Poll::Ready(Some(Ok(pb::HubMessage { kind: Some(kind) })))
    }
}

/// What an [`Outbox`] has to send next.
#[derive(Debug)]
pub enum NextMessage {
    /// This message.
    Message(Kind),
    /// Nothing more: the stream ends.
    Closed,
    /// Nothing now.
    Nothing,
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt as _;

    use super::*;

    #[test]
    fn groups_go_in_messages_that_a_daemon_takes() {
        const GROUPS: usize = 100;
        let outbox = Outbox::new(pb::Welcome::default());
        assert!(matches!(outbox.take(), NextMessage::Message(Kind::Welcome(_))));
        for group in 0..GROUPS {
            let rule = pb::TerminalRule {
                job: "j".repeat(500 << 10),
                ..pb::TerminalRule::default()
            };
            outbox.desired(Arc::new(pb::Group {
                uid: format!("{group:03}"),
                terminal_rules: Some(pb::TerminalRules { rules: vec![rule] }),
                ..pb::Group::default()
            }));
        }
        let mut sent = Vec::new();
        while let NextMessage::Message(Kind::Desired(desired)) = outbox.take() {
            assert!(desired.encoded_len() <= 4 << 20, "{}", desired.encoded_len());
            sent.extend(desired.groups.into_iter().map(|group| group.uid));
        }
        let all: Vec<String> = (0..GROUPS).map(|group| format!("{group:03}")).collect();
        assert_eq!(sent, all);
    }

    #[tokio::test(start_paused = true)]
    async fn a_ping_is_sent_every_ten_seconds_whatever_else_is_sent() {
        let outbox = Outbox::new(pb::Welcome::default());
        let mut messages = Outgoing::new(Arc::clone(&outbox));
        let began = Instant::now();
        let mut kinds = Vec::new();
        outbox.desired(Arc::default());
        for _ in 0..3 {
            let message = messages.next().await.unwrap().unwrap();
            kinds.push((began.elapsed().as_secs(), message.kind.unwrap()));
        }
        // A message in between puts off no ping.
        tokio::time::advance(Duration::from_secs(4)).await;
        outbox.accepted(1);
        for _ in 0..3 {
            let message = messages.next().await.unwrap().unwrap();
            kinds.push((began.elapsed().as_secs(), message.kind.unwrap()));
        }
        let (at, kinds): (Vec<u64>, Vec<Kind>) = kinds.into_iter().unzip();
        assert_eq!(at, [0, 0, 10, 14, 20, 30]);
        assert!(
            matches!(
                kinds[..],
                [
                    Kind::Welcome(_),
                    Kind::Desired(_),
                    Kind::Ping(pb::Ping { nonce: 1 }),
                    Kind::Accepted(_),
                    Kind::Ping(pb::Ping { nonce: 2 }),
                    Kind::Ping(pb::Ping { nonce: 3 }),
                ]
            ),
            "{kinds:?}"
        );
    }
}
