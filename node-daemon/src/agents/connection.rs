//! One connection of one agent: one task, from accept to close.
//!
//! ```text
//! accept ──Register, peer checked──> linked ──> State*  ↔  Target*  ──> EOF, error, or another connection of the same container
//! ```

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::{SinkExt as _, StreamExt as _};
use tokio::net::UnixStream;
use tokio::time::timeout;
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use tracing::{debug, info, warn};

use super::convert::{self, AgentMessage, DecodeError};
use super::peer::{PeerCheck, PeerError};
use crate::worker::driver::{Closed, Handle};
use crate::worker::facts::Input;
use crate::worker::types::{ContainerId, LinkId, PodUid};

/// Time for an agent to register, and to take a target.
const PATIENCE: Duration = Duration::from_secs(5);

/// Why a connection ended, other than by its agent.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Read or write failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The agent did not register, or did not take a target.
    #[error("the agent is silent")]
    Silent,
    /// What it sent is no message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Register was not first, or not only first.
    #[error("a message out of order")]
    Order,
    /// Another version of the protocol.
    #[error("agent protocol {0} is not spoken here")]
    Protocol(u32),
    /// Not the agent of that container.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// The daemon is going down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// What every connection needs.
pub struct Context {
    /// The way to the table.
    pub workers: Handle,
    /// Who may register.
    pub peers: Box<dyn PeerCheck>,
    next: AtomicU64,
}

impl Context {
    /// A context whose links count from 1.
    #[must_use]
    pub fn new(workers: Handle, peers: Box<dyn PeerCheck>) -> Self {
        Self {
            workers,
            peers,
            next: AtomicU64::new(1),
        }
    }
}

type Frames = Framed<UnixStream, LengthDelimitedCodec>;

/// Serves one connection of `pod` to its end.
pub async fn serve(stream: UnixStream, pod: PodUid, context: Arc<Context>) {
    let pid = stream.peer_cred().ok().and_then(|credentials| credentials.pid());
    let codec = LengthDelimitedCodec::builder()
        .max_frame_length(lockstep_proto::AGENT_MAX_FRAME)
        .new_codec();
    let mut frames = Framed::new(stream, codec);
    let (name, container, pid) = match register(&mut frames, pid, &context).await {
        Ok(Some(registered)) => registered,
        Ok(None) => return,
        Err(error) => {
            warn!(%pod, %error, "agent refused");
            return;
        }
    };
    let link = LinkId(context.next.fetch_add(1, Ordering::Relaxed));
    let registered = Input::Registered {
        pod: pod.clone(),
        id: container.clone(),
        name,
        link,
        pid,
    };
    match exchange(&mut frames, registered, &container, link, &context.workers).await {
        Ok(()) => info!(%pod, %container, "agent disconnected"),
        Err(error) => warn!(%pod, %container, %error, "agent disconnected"),
    }
    // When the driver has stopped there is nobody to tell.
    drop(context.workers.tell(Input::LinkDown(container, link)).await);
}

async fn register(
    frames: &mut Frames,
    pid: Option<i32>,
    context: &Context,
) -> Result<Option<(String, ContainerId, i32)>, LinkError> {
    let Some(frame) = timeout(PATIENCE, frames.next())
        .await
        .map_err(|_| LinkError::Silent)?
    else {
        return Ok(None);
    };
    let AgentMessage::Register {
        protocol,
        version,
        container,
        id,
    } = convert::decode(&frame?)?
    else {
        return Err(LinkError::Order);
    };
    if protocol != lockstep_proto::AGENT_PROTOCOL {
        return Err(LinkError::Protocol(protocol));
    }
    let id = if id.as_str().is_empty() {
        context.peers.container(pid)?
    } else {
        id
    };
    let pid = context.peers.check(pid, &id)?;
    info!(container = %id, name = container, pid, version, "agent registered");
    Ok(Some((container, id, pid)))
}

async fn exchange(
    frames: &mut Frames,
    registered: Input,
    container: &ContainerId,
    link: LinkId,
    workers: &Handle,
) -> Result<(), LinkError> {
    let mut targets = workers.linked(registered, link).await?;
    loop {
        tokio::select! {
            frame = frames.next() => {
                let Some(frame) = frame else {
                    return Ok(());
                };
                let AgentMessage::State(state) = convert::decode(&frame?)? else {
                    return Err(LinkError::Order);
                };
                workers.tell(Input::State(container.clone(), link, state)).await?;
            }
            changed = targets.changed() => {
                if changed.is_err() {
                    debug!(%container, "another connection has taken over, or the container is gone");
                    return Ok(());
                }
                let Some(target) = targets.borrow_and_update().clone() else {
                    continue;
                };
                timeout(PATIENCE, frames.send(bytes::Bytes::from(convert::encode(target))))
                    .await
                    .map_err(|_| LinkError::Silent)??;
            }
        }
    }
}
