//! The sending side of one node's stream: the newest desired state per group, never a backlog.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_core::restart::Epoch;
use lockstep_proto::node::v1::{self as pb, hub_message::Kind};
use prost::Message as _;
use tokio::sync::Notify;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// A message at least this often, so that both sides notice a dead peer.
const PING_EVERY: Duration = Duration::from_secs(10);

/// Groups in one Desired message.
const GROUPS_PER_MESSAGE: usize = 256;

/// The same in bytes, where it is more than one group: a daemon takes 16 MiB.
const MESSAGE: usize = 2 << 20;

/// What is to be sent to one node.
#[derive(Default)]
pub struct Outbox {
    pending: Mutex<Pending>,
    changed: Notify,
    /// Cancelled by [`Outbox::close`].
    closed: CancellationToken,
}

#[derive(Default)]
struct Pending {
    welcome: Option<pb::Welcome>,
    /// Of the newest credentials that were accepted.
    accepted: Option<u64>,
    groups: BTreeMap<String, Item>,
    draining: bool,
    closed: bool,
    /// Why the stream ends, where that is an error.
    failure: Option<Status>,
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
            changed: Notify::new(),
            closed: CancellationToken::new(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces what is pending for the group.
    pub fn desired(&self, group: Arc<pb::Group>) {
        self.lock().groups.insert(group.uid.clone(), Item::Desired(group));
        self.changed.notify_one();
    }

    /// Replaces what is pending for the group.
    pub fn forget(&self, uid: &str, epoch: Epoch) {
        self.lock().groups.insert(uid.to_owned(), Item::Forget(epoch));
        self.changed.notify_one();
    }

    /// Tells the daemon that its credentials of this serial are in use.
    pub fn accepted(&self, serial: u64) {
        self.lock().accepted = Some(serial);
        self.changed.notify_one();
    }

    /// Asks the daemon to reconnect, then ends the stream.
    pub fn drain(&self) {
        self.lock().draining = true;
        self.changed.notify_one();
    }

    /// Ends the stream: there is another one in its place.
    pub fn close(&self) {
        self.lock().closed = true;
        self.closed.cancel();
        self.changed.notify_one();
    }

    /// Resolves once there is another stream in the place of this one. Cancel-safe.
    pub async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Ends the stream with an error.
    pub fn fail(&self, status: Status) {
        let mut pending = self.lock();
        pending.failure = Some(status);
        pending.closed = true;
        drop(pending);
        self.changed.notify_one();
    }

    /// The next message, if there is one now.
    #[must_use]
    pub fn take(&self) -> Taken {
        let mut pending = self.lock();
        if pending.closed {
            return Taken::Closed;
        }
        if let Some(welcome) = pending.welcome.take() {
            return Taken::Message(Kind::Welcome(welcome));
        }
        if let Some(serial) = pending.accepted.take() {
            return Taken::Message(Kind::Accepted(pb::Accepted { serial }));
        }
        let mut groups = Vec::new();
        let mut size = 0;
        while groups.len() < GROUPS_PER_MESSAGE {
            match pending.groups.pop_first() {
                Some((uid, Item::Desired(group))) => {
                    size += group.encoded_len();
                    if size > MESSAGE && !groups.is_empty() {
                        pending.groups.insert(uid, Item::Desired(group));
                        break;
                    }
                    groups.push(Arc::unwrap_or_clone(group));
                }
                Some((uid, Item::Forget(epoch))) if groups.is_empty() => {
                    return Taken::Message(Kind::Forget(pb::Forget {
                        group_uid: uid,
                        epoch: epoch.0,
                    }));
                }
                Some((uid, forget @ Item::Forget(_))) => {
                    pending.groups.insert(uid, forget);
                    break;
                }
                None => break,
            }
        }
        if !groups.is_empty() {
            return Taken::Message(Kind::Desired(pb::Desired { groups }));
        }
        if pending.draining {
            pending.closed = true;
            return Taken::Message(Kind::Drain(pb::Drain {}));
        }
        Taken::Nothing
    }
}

/// What is sent on a stream: what the outbox has, and a sign of life where it has nothing for long.
pub(super) struct Outgoing {
    outbox: Arc<Outbox>,
    /// When the last one was sent.
    last: Instant,
    /// One timer for all messages: it is not moved by each of them, and looks how long ago the last one was when it is over.
    quiet: Pin<Box<Sleep>>,
    pings: u64,
}

impl Outgoing {
    /// Those of this outbox, from now on.
    #[must_use]
    pub(super) fn new(outbox: Arc<Outbox>) -> Self {
        let now = Instant::now();
        Self {
            outbox,
            last: now,
            quiet: Box::pin(sleep_until(now + PING_EVERY)),
            pings: 0,
        }
    }

    /// The next message, or the error that the stream ends with; `None` once it has ended. Cancel-safe.
    pub(super) async fn next(&mut self) -> Option<Result<pb::HubMessage, Status>> {
        loop {
            let kind = match self.outbox.take() {
                Taken::Message(kind) => Some(kind),
                Taken::Closed => return self.outbox.lock().failure.take().map(Err),
                Taken::Nothing => {
                    tokio::select! {
                        biased;
                        () = self.outbox.changed.notified() => None,
                        () = &mut self.quiet => self.ping(),
                    }
                }
            };
            if let Some(kind) = kind {
                self.last = Instant::now();
                return Some(Ok(pb::HubMessage { kind: Some(kind) }));
            }
        }
    }

    /// A ping, if it is time for one.
    fn ping(&mut self) -> Option<Kind> {
        let now = Instant::now();
        let due = self.last + PING_EVERY;
        let next = if due > now { due } else { now + PING_EVERY };
        self.quiet.as_mut().reset(next);
        (due <= now).then(|| {
            self.pings += 1;
            Kind::Ping(pb::Ping { nonce: self.pings })
        })
    }
}

/// What an [`Outbox`] has to send.
#[derive(Debug)]
pub enum Taken {
    /// This.
    Message(Kind),
    /// Nothing any more: the stream ends.
    Closed,
    /// Nothing now.
    Nothing,
}

#[cfg(test)]
mod tests;
