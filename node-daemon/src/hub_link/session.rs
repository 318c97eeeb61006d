//! One stream to one replica of the hub.

use std::time::Duration;

use lockstep_proto::node::v1 as wire;
use lockstep_proto::node::v1::hub_message::Kind as FromHub;
use lockstep_proto::node::v1::node_hub_client::NodeHubClient;
use lockstep_proto::{NODE_PROTOCOL, NODE_PROTOCOL_CREDENTIALS};
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};
use tonic::{Status, Streaming};
use tracing::{debug, info, warn};

use super::error::SessionError;
use super::outgoing::{self, MessageQueue};
use super::renewal::Renewal;
use super::{Hub, connect, convert};
use crate::health::RuntimeAccess;
use crate::worker::driver::Handle;
use crate::worker::facts::Input;
use crate::worker::types::{Desired, Epoch, WorkerState};

/// Time for the Welcome, and for the hub's last messages.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);
/// Limits on the states in a Hello, in bytes and in number: a hub accepts messages of up to 4 MiB
/// with at most this many states.
const MAX_HELLO: (usize, usize) = (3 << 20, 4096);
/// Largest overhead of one state in a message, in bytes.
const FRAME: usize = 8;
/// Longest wait before leaving after a Drain: many nodes get one at once.
const DRAIN_SPREAD_MS: u64 = 1000;
/// Largest message from the hub: the groups of one node.
const MAX_MESSAGE: usize = 16 << 20;

/// How a stream ended without an error.
#[derive(Debug, PartialEq, Eq)]
pub enum End {
    /// The hub closed it.
    Closed,
    /// The hub asked the daemon to reconnect elsewhere.
    Drained,
    /// The replica does not lead; this one does, if it is known.
    NotLeader(Option<String>),
}

/// A stream that stays open this long counts as healthy.
const STEADY: Duration = Duration::from_secs(10);

/// How far a stream got.
#[derive(Debug, Default)]
pub struct Progress {
    welcomed: Option<Instant>,
    desired: bool,
}

impl Progress {
    /// True if the hub has accepted the stream.
    #[must_use]
    pub fn is_welcome(&self) -> bool {
        self.welcomed.is_some()
    }

    /// True if the stream was useful: it delivered an order, or stayed open for a while. A Welcome
    /// is not enough: what follows it may fail each time.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.desired || self.welcomed.is_some_and(|at| at.elapsed() >= STEADY)
    }
}

/// Runs one stream to its end. `progress` records how far it gets.
///
/// # Errors
/// When it could not be opened, or failed.
pub async fn run(
    hub: &Hub,
    address: &str,
    workers: &Handle,
    progress: &mut Progress,
) -> Result<End, SessionError> {
    let channel = connect::channel(hub, address).await?;
    let token = connect::token(hub).await?;
    let mut health = workers.health().watch();
    // Before the snapshot: this stream reports what changes after it.
    let reports = workers.outbox().reader();
    let (hello, rest) = hello(hub, workers, &mut health).await?;
    let (queue, messages) = outgoing::open(hello, rest, reports);
    let request = connect::request(&token, messages)?;
    let mut client = NodeHubClient::new(channel).max_decoding_message_size(MAX_MESSAGE);
    let opened = timeout(REPLY_TIMEOUT, async {
        let mut incoming = client.connect(request).await?.into_inner();
        let first = incoming.message().await?;
        Ok::<_, Status>((incoming, first))
    });
    let (incoming, first) = opened.await.map_err(|_| SessionError::NotWelcomed)??;
    let welcome = match first.and_then(|message| message.kind) {
        Some(FromHub::Welcome(welcome)) => welcome,
        Some(FromHub::NotLeader(not_leader)) => return Ok(End::NotLeader(leader(&not_leader.address))),
        _ => return Err(SessionError::NotWelcomed),
    };
    let protocol = welcome.protocol;
    if !NODE_PROTOCOL.contains(&protocol) {
        return Err(SessionError::Protocol(protocol));
    }
    let epoch = Epoch(welcome.epoch);
    let written = workers.welcomed(epoch).await?;
    written.map_err(SessionError::Epoch)?;
    info!(address, epoch = epoch.0, protocol, "linked to the hub");
    progress.welcomed = Some(Instant::now());
    queue.welcomed();
    let renewal = (protocol >= NODE_PROTOCOL_CREDENTIALS).then(|| Renewal::new(hub, token));
    let session = Session {
        incoming,
        epoch,
        queue,
        workers,
        health,
        renewal,
        leave_at: None,
    };
    session.exchange(progress).await
}

/// A stream that the hub has welcomed.
struct Session<'a> {
    // Dropped first: requests end before the stream is reset.
    queue: MessageQueue,
    incoming: Streaming<wire::HubMessage>,
    /// Epoch of the leader at its other end.
    epoch: Epoch,
    workers: &'a Handle,
    health: watch::Receiver<RuntimeAccess>,
    /// None if the hub takes no new tokens.
    renewal: Option<Renewal<'a>>,
    /// When to leave, after a Drain.
    leave_at: Option<Instant>,
}

impl Session<'_> {
    async fn exchange(mut self, progress: &mut Progress) -> Result<End, SessionError> {
        loop {
            tokio::select! {
                // Messages first: those that have arrived must not be lost when the stream ends.
                biased;
                message = self.incoming.message() => {
                    let ended = match message? {
                        Some(message) => self.take(message, progress).await?,
                        None if self.leave_at.is_some() => Some(End::Drained),
                        None => Some(End::Closed),
                    };
                    if let Some(end) = ended {
                        return Ok(end);
                    }
                }
                () = health_changed(&mut self.health) => {
                    let health = convert::health(&self.health.borrow_and_update());
                    self.queue.health(health);
                }
                token = next_token(&mut self.renewal) => self.queue.token(token),
                // The stream has ended; `incoming` says how.
                () = self.queue.closed() => return finish(self.incoming).await,
                () = until(self.leave_at) => return Ok(End::Drained),
            }
        }
    }

    /// Handles one message. Returns how the stream ended, if the message ends it.
    async fn take(
        &mut self,
        message: wire::HubMessage,
        progress: &mut Progress,
    ) -> Result<Option<End>, SessionError> {
        match message.kind {
            Some(FromHub::Desired(desired)) => {
                debug!(groups = desired.groups.len(), "desired state");
                let desired = of_leader(self.epoch, convert::desired(desired));
                self.workers.tell(Input::Desired(desired)).await?;
                progress.desired = true;
            }
            Some(FromHub::Forget(forget)) => {
                info!(group = forget.group_uid, "group is no longer managed");
                let forget = Input::Forget(forget.group_uid.into(), Epoch(forget.epoch));
                self.workers.tell(forget).await?;
            }
            Some(FromHub::Ping(ping)) => self.queue.pong(wire::Pong {
                nonce: ping.nonce,
                refused_agents: self.workers.health().refused_agents(),
            }),
            Some(FromHub::Accepted(accepted)) => {
                if let Some(renewal) = &mut self.renewal {
                    renewal.accepted(accepted.serial);
                }
            }
            Some(FromHub::Drain(_)) => {
                let spread = Duration::from_millis(rand::random_range(0..DRAIN_SPREAD_MS));
                self.leave_at.get_or_insert(Instant::now() + spread);
            }
            Some(FromHub::NotLeader(not_leader)) => {
                return Ok(Some(End::NotLeader(leader(&not_leader.address))));
            }
            // A message of a later version of the protocol, or a second Welcome.
            Some(FromHub::Welcome(_)) | None => debug!("ignored a message that has no meaning here"),
        }
        Ok(None)
    }
}

/// Orders of the leader that has welcomed this daemon. Those of a higher epoch are dropped: no such
/// epoch was recorded.
fn of_leader(epoch: Epoch, mut groups: Vec<Desired>) -> Vec<Desired> {
    groups.retain(|group| {
        let is_known = group.epoch <= epoch;
        if !is_known {
            warn!(group = %group.group, epoch = group.epoch.0, welcome = epoch.0, "ignored desired state with an epoch above that of the Welcome");
        }
        is_known
    });
    groups
}

/// Returns when the health differs from the one read last. Cancel safe.
async fn health_changed(health: &mut watch::Receiver<RuntimeAccess>) {
    if health.changed().await.is_err() {
        // The sender is gone, and its last value was taken before.
        std::future::pending().await
    }
}

/// The next token of this daemon that the hub has not accepted. Cancel safe.
async fn next_token(renewal: &mut Option<Renewal<'_>>) -> wire::Credentials {
    match renewal {
        Some(renewal) => renewal.next().await,
        None => std::future::pending().await,
    }
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The stream no longer takes messages: waits a moment for the hub's reason.
async fn finish(mut incoming: Streaming<wire::HubMessage>) -> Result<End, SessionError> {
    let last = timeout(REPLY_TIMEOUT, async {
        while incoming.message().await?.is_some() {}
        Ok::<_, Status>(())
    });
    last.await.unwrap_or(Ok(()))?;
    Ok(End::Closed)
}

/// The Hello, and the states that did not fit into it.
async fn hello(
    hub: &Hub,
    workers: &Handle,
    health: &mut watch::Receiver<RuntimeAccess>,
) -> Result<(wire::Hello, Vec<wire::WorkerState>), SessionError> {
    let (snapshot, rest) = fitting(workers.snapshot().await?);
    let hello = wire::Hello {
        protocol_min: *NODE_PROTOCOL.start(),
        protocol_max: *NODE_PROTOCOL.end(),
        daemon_version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: hub.boot_id.clone(),
        snapshot,
        health: Some(convert::health(&health.borrow_and_update())),
    };
    Ok((hello, rest))
}

/// Splits the states into those that fit into a Hello and the rest. Live workers go before ended
/// ones. Texts for people are left out: they were sent before.
fn fitting(workers: Vec<WorkerState>) -> (Vec<wire::WorkerState>, Vec<wire::WorkerState>) {
    let mut states: Vec<_> = workers.into_iter().map(convert::worker_state).collect();
    for state in &mut states {
        state.detail.clear();
    }
    states.sort_by_key(|state| matches!(state.phase(), wire::Phase::Lost | wire::Phase::Done));
    let mut room = MAX_HELLO.0;
    let fits = states.iter().take(MAX_HELLO.1).take_while(|state| {
        let left = room.checked_sub(state.encoded_len() + FRAME);
        room = left.unwrap_or(0);
        left.is_some()
    });
    let fits = fits.count();
    let rest = states.split_off(fits);
    (states, rest)
}

/// `NotLeader.address` is `host:port`, or a whole URL. The token is never sent without TLS.
fn leader(address: &str) -> Option<String> {
    let address = address.strip_prefix("https://").unwrap_or(address);
    let is_host = !address.is_empty() && !address.contains("://");
    is_host.then(|| format!("https://{address}"))
}

#[cfg(test)]
mod tests {
    use super::leader;

    #[test]
    fn a_leader_is_contacted_over_tls_or_not_at_all() {
        let url = Some("https://10.0.0.1:9444".to_owned());
        assert_eq!(leader("10.0.0.1:9444"), url);
        assert_eq!(leader("https://10.0.0.1:9444"), url);
        assert_eq!([leader(""), leader("http://10.0.0.1:9444")], [None, None]);
    }
}
