//! One node's stream, from its Welcome to its end.
//!
//! ```text
//!             ┌─ a fresh token of this node: continues with it
//! Welcome ──> │
//!             ├─ token expired, and no new one within the grace ─┐
//!             ├─ token revoked, or of another node ──────────────┴──> ends as unauthenticated
//!             ├─ a protocol violation: ends with its error
//!             ├─ a daemon that sends no tokens: Drain before the token expires, so that it reconnects
//!             └─ closed by the node, replaced by another stream, or shutting down
//! ```
//!
//! The end of a stream affects no worker.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use lockstep_process::rate_limit::SharedRateLimit;
use lockstep_proto::NODE_PROTOCOL_CREDENTIALS;
use lockstep_proto::node::v1::{self as pb, node_message::Kind};
use thiserror::Error;
use tokio::time::{Instant, sleep_until};
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::CancellationToken;
use tonic::Status;

use super::auth::{AuthError, Authenticator, Credentials};
use super::convert;
use super::outbox::Outbox;
use super::protocol::ProtocolViolation;
use super::refusals::Refusals;
use super::registry::Registry;

/// How long before its token expires a daemon that sends no new tokens is asked to reconnect.
const BEFORE: Duration = Duration::from_secs(60);

/// A stream of an authenticated daemon.
pub(super) struct Session {
    pub(super) registry: Arc<Registry>,
    pub(super) authenticator: Arc<Authenticator>,
    pub(super) refusals: Arc<Refusals>,
    pub(super) outbox: Arc<Outbox>,
    pub(super) credentials: Credentials,
    pub(super) grace: Duration,
    pub(super) protocol: u32,
    /// The pace of the node, which all of its streams share.
    pub(super) pace: Arc<SharedRateLimit>,
}

/// Why a stream has ended.
enum End {
    /// Closed by the node or by the connection, with the reason.
    Closed(String),
    Refused(Refused),
    ShuttingDown,
}

/// What happens to a stream besides messages.
enum Event {
    End(End),
    /// It is time to ask the daemon to reconnect.
    Drain,
}

/// What follows from a message.
enum Next {
    Continue,
    NewCredentials,
    End(End),
}

/// What a stream waits for besides messages. Messages are frequent and these events are rare, so
/// the events are polled only when one has happened, and not for each message.
#[derive(Default)]
struct SideEvents(FuturesUnordered<BoxFuture<'static, Event>>);

impl SideEvents {
    /// Waits for this event instead of the one before.
    fn wait_for(&mut self, event: impl Future<Output = Event> + Send + 'static) {
        self.0.clear();
        self.0.push(Box::pin(event));
    }

    /// Cancel-safe.
    async fn next(&mut self) -> Event {
        match self.0.next().await {
            Some(event) => event,
            None => std::future::pending().await,
        }
    }
}

/// Why a stream is ended as refused.
#[derive(Debug, Error)]
enum Refused {
    #[error(transparent)]
    Credentials(#[from] AuthError),
    #[error(transparent)]
    ProtocolViolation(#[from] ProtocolViolation),
}

impl Refused {
    fn reason(&self) -> &'static str {
        match self {
            Self::Credentials(error) => error.reason(),
            Self::ProtocolViolation(violation) => violation.reason(),
        }
    }
}

impl From<Refused> for Status {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Credentials(error) => error.into(),
            Refused::ProtocolViolation(violation) => violation.into(),
        }
    }
}

impl Session {
    /// Handles the node's messages until the stream ends.
    pub(super) async fn run<S>(mut self, session: u64, mut inbound: S, shutdown: CancellationToken)
    where
        S: Stream<Item = Result<pb::NodeMessage, Status>> + Unpin,
    {
        let mut drain_at = self.drain_at();
        let pace = Arc::clone(&self.pace);
        let mut side_events = SideEvents::default();
        side_events.wait_for(self.side_event(drain_at, &shutdown));
        let end = loop {
            tokio::select! {
                biased;
                event = side_events.next() => match event {
                    Event::End(end) => break end,
                    Event::Drain => {
                        drain_at = None;
                        self.outbox.drain();
                        side_events.wait_for(self.side_event(drain_at, &shutdown));
                    }
                },
                message = next(&pace, &mut inbound) => {
                    pace.take();
                    match self.take(session, message).await {
                        Next::Continue => {}
                        Next::NewCredentials => side_events.wait_for(self.side_event(drain_at, &shutdown)),
                        Next::End(end) => break end,
                    }
                }
            }
        };
        let node = &self.credentials.node;
        self.registry.disconnect(node, session);
        let reason = match end {
            End::Closed(reason) => {
                self.outbox.drain();
                reason
            }
            End::ShuttingDown => {
                self.outbox.drain();
                "shutting down".to_owned()
            }
            End::Refused(error) => {
                self.refusals.note(node, error.reason(), &error);
                let reason = error.to_string();
                self.outbox.fail(error.into());
                reason
            }
        };
        tracing::info!(reason, "node disconnected");
    }

    /// Handles one message.
    async fn take(&mut self, session: u64, message: Option<Result<pb::NodeMessage, Status>>) -> Next {
        let closed = |reason: &str| Next::End(End::Closed(reason.to_owned()));
        let violation = |violation: ProtocolViolation| Next::End(End::Refused(violation.into()));
        match message {
            Some(Ok(message)) => match message.kind {
                Some(Kind::Report(report)) => {
                    let node = &self.credentials.node;
                    if let Some(health) = report.health {
                        let health = convert::health_from(Some(health));
                        self.registry.set_health(node, session, health);
                    }
                    self.registry.report(node, session, report.workers);
                    self.registry.gone(node, session, report.gone);
                    Next::Continue
                }
                // Rare, and large.
                Some(Kind::Credentials(fresh)) => match Box::pin(self.renew(&fresh)).await {
                    Ok(()) => Next::NewCredentials,
                    Err(error) => Next::End(End::Refused(error.into())),
                },
                Some(Kind::Pong(pong)) => {
                    let node = &self.credentials.node;
                    self.registry
                        .count_refused_agents(node, session, pong.refused_agents);
                    Next::Continue
                }
                Some(Kind::Hello(_)) => violation(ProtocolViolation::SecondHello),
                None => violation(ProtocolViolation::UnknownKind),
            },
            Some(Err(status)) => {
                ProtocolViolation::of(&status).map_or_else(|| closed(&status.to_string()), violation)
            }
            None => closed("closed by the node"),
        }
    }

    /// Continues with another token. A token that is not accepted changes nothing: the one before
    /// stays valid until it expires.
    async fn renew(&mut self, sent: &pb::Credentials) -> Result<(), AuthError> {
        let node = &self.credentials.node;
        match self.authenticator.check(&sent.token).await {
            Ok(fresh) if fresh.node == *node => {
                tracing::debug!("fresh credentials");
                self.credentials = fresh;
                // Older daemons do not number them, and send each once.
                if sent.serial != 0 {
                    self.outbox.accepted(sent.serial);
                }
                Ok(())
            }
            Ok(other) => Err(AuthError::OtherNode { node: other.node }),
            Err(AuthError::Revoked) => Err(AuthError::Revoked),
            Err(error) => {
                self.refusals.note(node, error.reason(), &error);
                Ok(())
            }
        }
    }

    /// The next event besides messages, with the current credentials.
    fn side_event(
        &self,
        drain_at: Option<Instant>,
        shutdown: &CancellationToken,
    ) -> impl Future<Output = Event> + Send + 'static {
        let over = self.credentials.expires() + self.grace;
        let (replaced, revoked) = (self.outbox.closed(), self.credentials.revoked());
        let shut_down = shutdown.clone().cancelled_owned();
        async move {
            tokio::select! {
                () = replaced => Event::End(End::Closed("replaced by another stream".to_owned())),
                () = revoked => Event::End(End::Refused(AuthError::Revoked.into())),
                () = sleep_until(over) => Event::End(End::Refused(AuthError::Overdue.into())),
                () = until(drain_at) => Event::Drain,
                () = shut_down => Event::End(End::ShuttingDown),
            }
        }
    }

    /// When a daemon that sends no new tokens is asked to reconnect: before it must, but not again
    /// and again.
    fn drain_at(&self) -> Option<Instant> {
        let left = self.credentials.expires().duration_since(Instant::now());
        (self.protocol < NODE_PROTOCOL_CREDENTIALS).then(|| Instant::now() + left - BEFORE.min(left / 2))
    }
}

/// The next message, once the pace allows one. Cancel-safe.
async fn next<S: Stream + Unpin>(pace: &SharedRateLimit, inbound: &mut S) -> Option<S::Item> {
    pace.ready().await;
    inbound.next().await
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}
