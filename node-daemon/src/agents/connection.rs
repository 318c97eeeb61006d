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
use lockstep_process::rate_limit::{Rate, RateLimit};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::codec::{Framed, LengthDelimitedCodec};
use tracing::debug;

use super::convert::{self, AgentMessage, DecodeError};
use super::peer::{Peer, PeerCheck, PeerError};
use super::refusals::Refusals;
use crate::worker::driver::{Closed, Handle, NotLinked};
use crate::worker::facts::Input;
use crate::worker::types::{ContainerId, LinkId, PodUid, Target};

/// Time for an agent to register, and to read a target.
const IO_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a refused connection still counts against its pod's limit. That slows down a peer that
/// reconnects in a loop, and no other pod.
const REFUSED: Duration = Duration::from_secs(1);

/// Rate of states from one agent. A restart takes a handful.
const STATES: Rate = Rate {
    burst: 64,
    every: Duration::from_millis(20),
};

/// Why a connection ended, other than by its agent.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// Read or write failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The agent did not register, or did not read a target.
    #[error("the agent is silent")]
    Silent,
    /// It sent no valid message.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// Register was not the first message, or came again.
    #[error("a message out of order")]
    Order,
    /// Another version of the protocol.
    #[error("agent protocol {0} is not supported")]
    Protocol(u32),
    /// Not the agent of that container.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// Its container is another pod's, or the daemon is going down.
    #[error(transparent)]
    NotLinked(#[from] NotLinked),
    /// The daemon is going down.
    #[error(transparent)]
    Closed(#[from] Closed),
}

/// What every connection needs.
pub struct Context {
    /// Sends facts to the driver.
    pub workers: Handle,
    /// Decides which peers may register.
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

/// A registration whose peer was checked.
struct Registered {
    /// Name of its container in its pod.
    name: String,
    container: ContainerId,
    pid: i32,
    version: String,
}

type Frames = Framed<UnixStream, LengthDelimitedCodec>;

/// Serves one connection of `pod` to its end.
pub async fn serve(stream: UnixStream, pod: PodUid, context: Arc<Context>, refusals: Arc<Refusals>) {
    let mut frames = Framed::new(stream, codec());
    let Registered {
        name,
        container,
        pid,
        version,
    } = match register(&mut frames, &pod, &context, &refusals).await {
        Ok(Some(registered)) => registered,
        Ok(None) => return,
        Err(error) => return refuse(frames, &pod, &error, &refusals).await,
    };
    let link = LinkId(context.next.fetch_add(1, Ordering::Relaxed));
    let registered = Input::Registered {
        pod: pod.clone(),
        id: container.clone(),
        name,
        link,
        pid,
    };
    let targets = match context.workers.linked(registered, link, version).await {
        Ok(targets) => targets,
        Err(error) => return refuse(frames, &pod, &error.into(), &refusals).await,
    };
    let agent = LinkedAgent {
        container: &container,
        link,
        workers: &context.workers,
        refusals: &refusals,
    };
    let ended = agent.exchange(&mut frames, targets).await;
    let why = ended.err().map(|error| error.to_string());
    // A driver that has stopped needs no report.
    drop(context.workers.unlinked(container, link, why).await);
}

/// Refuses a connection: closes it at once, but returns later, see [`REFUSED`].
async fn refuse(frames: Frames, pod: &PodUid, error: &LinkError, refusals: &Refusals) {
    refusals.note(pod, error);
    drop(frames);
    tokio::time::sleep(REFUSED).await;
}

/// Frames of the agent protocol. A frame that is too long is refused before it is buffered.
fn codec() -> LengthDelimitedCodec {
    LengthDelimitedCodec::builder()
        .max_frame_length(lockstep_proto::AGENT_MAX_FRAME)
        .new_codec()
}

async fn register(
    frames: &mut Frames,
    pod: &PodUid,
    context: &Context,
    refusals: &Refusals,
) -> Result<Option<Registered>, LinkError> {
    let Some(frame) = timeout(IO_TIMEOUT, frames.next())
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
    // A peer may connect as fast as it likes: it only delays its own pod.
    refusals.registrations.acquire(1).await;
    // Not earlier, so that a silent peer costs one descriptor of the daemon, not two. The kernel
    // has known the peer since it connected, so a later process with its PID is not mistaken for
    // it. `/proc` is read below while the process is held.
    let peer = Peer::of(frames.get_ref());
    let id = if id.as_str().is_empty() {
        context.peers.container(&peer)?
    } else {
        id
    };
    let pid = context.peers.check(&peer, &id, pod)?;
    Ok(Some(Registered {
        name: container,
        container: id,
        pid,
        version,
    }))
}

/// An agent whose connection is accepted.
struct LinkedAgent<'a> {
    container: &'a ContainerId,
    link: LinkId,
    workers: &'a Handle,
    refusals: &'a Refusals,
}

impl LinkedAgent<'_> {
    /// Takes the agent's states and sends its targets, to the end of the connection.
    async fn exchange(
        &self,
        frames: &mut Frames,
        mut targets: watch::Receiver<Option<Target>>,
    ) -> Result<(), LinkError> {
        let mut limit = RateLimit::new(STATES);
        loop {
            tokio::select! {
                // States that are not read yet wait at the agent, which keeps only its newest one.
                // Targets do not wait for them.
                frame = async { limit.ready().await; self.refusals.states.ready().await; frames.next().await } => {
                    limit.take();
                    self.refusals.states.take();
                    let Some(frame) = frame else {
                        return Ok(());
                    };
                    let AgentMessage::State(state) = convert::decode(&frame?)? else {
                        return Err(LinkError::Order);
                    };
                    self.workers.tell(Input::State(self.container.clone(), self.link, state)).await?;
                }
                changed = targets.changed() => {
                    if changed.is_err() {
                        debug!(container = %self.container, "another connection has taken over, or the container is gone");
                        return Ok(());
                    }
                    let Some(target) = targets.borrow_and_update().clone() else {
                        continue;
                    };
                    timeout(IO_TIMEOUT, frames.send(bytes::Bytes::from(convert::encode(target))))
                        .await
                        .map_err(|_| LinkError::Silent)??;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;
    use lockstep_proto::AGENT_MAX_FRAME;
    use proptest::prelude::*;
    use tokio_util::codec::Decoder as _;

    use super::*;

    /// The frames in these pieces, the largest buffer that they took, and true if all were valid.
    fn frames(pieces: &[Vec<u8>]) -> (Vec<BytesMut>, usize, bool) {
        let (mut codec, mut input) = (codec(), BytesMut::new());
        let (mut frames, mut room) = (Vec::new(), 0);
        for piece in pieces {
            input.extend_from_slice(piece);
            loop {
                match codec.decode(&mut input) {
                    Ok(Some(frame)) => frames.push(frame),
                    Ok(None) => break,
                    Err(_) => return (frames, room, false),
                }
            }
            room = room.max(input.capacity());
        }
        (frames, room, true)
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_at_once() {
        let length = u32::try_from(AGENT_MAX_FRAME + 1).unwrap().to_be_bytes();
        assert!(!frames(&[length.to_vec()]).2);
        let length = u32::try_from(AGENT_MAX_FRAME).unwrap().to_be_bytes();
        assert!(frames(&[length.to_vec()]).2);
    }

    proptest! {
        #[test]
        fn input_from_agents_takes_no_more_room_than_a_frame(
            pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..64), 0..32),
            length in any::<u32>(),
        ) {
            for pieces in [pieces.clone(), [vec![length.to_be_bytes().to_vec()], pieces].concat()] {
                let (frames, room, _) = frames(&pieces);
                prop_assert!(room <= 4 * AGENT_MAX_FRAME, "{}", room);
                for frame in frames {
                    prop_assert!(frame.len() <= AGENT_MAX_FRAME);
                    drop(convert::decode(&frame));
                }
            }
        }
    }
}
