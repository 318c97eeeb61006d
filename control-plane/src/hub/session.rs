//! The sending side of one node's stream: the newest desired state per group, never a backlog.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lockstep_core::restart::Epoch;
use lockstep_proto::node::v1::{self as pb, hub_message::Kind};
use prost::Message as _;
use tokio::sync::Notify;
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
    pings: u64,
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

    /// The next message, or the error that the stream ends with; `None` once it has ended. Cancel-safe.
    pub async fn next(&self) -> Option<Result<pb::HubMessage, Status>> {
        loop {
            match self.take() {
                Taken::Message(kind) => return Some(Ok(pb::HubMessage { kind: Some(kind) })),
                Taken::Closed => return self.lock().failure.take().map(Err),
                Taken::Nothing => {}
            }
            if tokio::time::timeout(PING_EVERY, self.changed.notified())
                .await
                .is_err()
            {
                let mut pending = self.lock();
                pending.pings += 1;
                return Some(Ok(pb::HubMessage {
                    kind: Some(Kind::Ping(pb::Ping { nonce: pending.pings })),
                }));
            }
        }
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
