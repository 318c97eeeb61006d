//! A [`Handle`] sends the driver facts and questions.

use std::io;
use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};

use super::super::facts::Input;
use super::super::outbox::Outbox;
use super::super::types::{ContainerId, Epoch, LinkId, Target, WorkerState};
use crate::health::Health;
use crate::plain::facts as plain;

/// A new connection of an agent.
pub(super) struct Arrival {
    /// The fact that it registered.
    pub(super) registered: Input,
    pub(super) link: LinkId,
    pub(super) version: String,
}

pub(super) enum Message {
    Fact(Input),
    Plain(plain::Input),
    Linked(
        Box<Arrival>,
        oneshot::Sender<Option<watch::Receiver<Option<Target>>>>,
    ),
    Unlinked(ContainerId, LinkId, Option<String>),
    Welcomed(Epoch, oneshot::Sender<io::Result<()>>),
    Snapshot(oneshot::Sender<Vec<WorkerState>>),
    Mark(oneshot::Sender<u64>),
}

/// The driver has stopped: the daemon is going down.
#[derive(Debug, thiserror::Error)]
#[error("the worker table is closed")]
pub struct Closed;

/// Why an agent's connection is not taken.
#[derive(Debug, thiserror::Error)]
pub enum NotLinked {
    /// Its socket belongs to another pod than its container.
    #[error("the container belongs to another pod than the socket")]
    OtherPod,
    /// There is no driver.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// Sends the driver facts and questions.
#[derive(Clone)]
pub struct Handle {
    pub(super) inbox: mpsc::Sender<Message>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) health: Arc<Health>,
}

impl Handle {
    /// Tells the driver a fact.
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn tell(&self, input: Input) -> Result<(), Closed> {
        self.send(Message::Fact(input)).await
    }

    /// Tells the driver a fact about workers without an agent.
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn tell_plain(&self, input: plain::Input) -> Result<(), Closed> {
        self.send(Message::Plain(input)).await
    }

    /// Tells the driver a fact, unless its inbox is full: the fact is then returned.
    ///
    /// # Errors
    /// `Ok(Some(_))` is the fact that found no room; an error means that the driver has stopped.
    pub fn try_tell(&self, input: Input) -> Result<Option<Input>, Closed> {
        match self.inbox.try_send(Message::Fact(input)) {
            Ok(()) => Ok(None),
            Err(mpsc::error::TrySendError::Full(Message::Fact(input))) => Ok(Some(input)),
            Err(_) => Err(Closed),
        }
    }

    /// Announces a new connection of an agent of this version. The receiver holds the newest
    /// target. It closes when another connection of the same container takes over, or when the
    /// container is gone.
    ///
    /// # Errors
    /// When the container is known to belong to another pod, or when the driver has stopped.
    pub async fn linked(
        &self,
        registered: Input,
        link: LinkId,
        version: String,
    ) -> Result<watch::Receiver<Option<Target>>, NotLinked> {
        let (sender, receiver) = oneshot::channel();
        let arrival = Arrival {
            registered,
            link,
            version,
        };
        self.send(Message::Linked(Box::new(arrival), sender)).await?;
        receiver.await.map_err(|_| Closed)?.ok_or(NotLinked::OtherPod)
    }

    /// A connection of an agent has ended, with a reason unless the agent ended it.
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn unlinked(
        &self,
        container: ContainerId,
        link: LinkId,
        why: Option<String>,
    ) -> Result<(), Closed> {
        self.send(Message::Unlinked(container, link, why)).await
    }

    /// A hub has welcomed this node under this epoch. After `Ok`, no daemon of this boot obeys a
    /// lower one.
    ///
    /// # Errors
    /// The outer error means that the driver has stopped. The inner one means that the epoch could
    /// not be recorded, so nothing may be done under it.
    pub async fn welcomed(&self, epoch: Epoch) -> Result<io::Result<()>, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Welcomed(epoch, sender)).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// All current states. Those that waited to be reported are among them, and no longer wait.
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn snapshot(&self) -> Result<Vec<WorkerState>, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Snapshot(sender)).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// See [`Table::mark`](super::super::state::Table::mark).
    ///
    /// # Errors
    /// When the driver has stopped.
    pub async fn mark(&self) -> Result<u64, Closed> {
        let (sender, receiver) = oneshot::channel();
        self.send(Message::Mark(sender)).await?;
        receiver.await.map_err(|_| Closed)
    }

    /// What waits to be reported.
    #[must_use]
    pub fn outbox(&self) -> &Arc<Outbox> {
        &self.outbox
    }

    /// Health of the container runtime, as seen by the senders of facts, and the count of refused
    /// connections.
    #[must_use]
    pub fn health(&self) -> &Arc<Health> {
        &self.health
    }

    async fn send(&self, message: Message) -> Result<(), Closed> {
        self.inbox.send(message).await.map_err(|_| Closed)
    }
}
