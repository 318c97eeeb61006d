//! The connection to the node daemon: frames, and endless reconnecting.
//!
//! It promises never to block and never to grow: incoming bytes are bounded by one frame, and of
//! the outgoing states only the one being written and the newest one are kept. A daemon that sends
//! invalid frames is disconnected; none of that reaches the worker.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_proto::AGENT_MAX_FRAME;
use lockstep_proto::agent::v1::{AgentMessage, Target};
use prost::Message;
use thiserror::Error;

use crate::sys::{self, Interest};

const RETRY_MIN: Duration = Duration::from_millis(20);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// A connection that lasts this long is a good one: after its loss, retries begin with the shortest
/// pause.
const GOOD_AFTER: Duration = Duration::from_secs(1);
/// Reads per turn, so that a flood from the daemon cannot starve the signals.
const READS: usize = 16;

/// Why a connection was given up.
#[derive(Debug, Error)]
pub(crate) enum LinkError {
    #[error("the daemon closed the connection")]
    Closed,
    #[error("frame of {0} bytes")]
    Oversized(usize),
    #[error("undecodable frame: {0}")]
    Garbage(#[from] prost::DecodeError),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// The link of one agent.
#[derive(Debug)]
pub(crate) struct Link {
    path: PathBuf,
    stream: Option<Stream>,
    pause: Duration,
    retry_at: Duration,
}

#[derive(Debug)]
struct Stream {
    socket: UnixStream,
    since: Duration,
    input: Frames,
    /// The bytes being written; a message is never cut off in the middle.
    out: Vec<u8>,
    written: usize,
    /// The newest state, which follows `out`.
    next: Option<AgentMessage>,
}

impl Link {
    pub(crate) fn new(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            stream: None,
            pause: RETRY_MIN,
            retry_at: Duration::ZERO,
        }
    }

    pub(crate) fn is_up(&self) -> bool {
        self.stream.is_some()
    }

    /// True if everything posted has been handed to the kernel.
    pub(crate) fn is_flushed(&self) -> bool {
        self.stream.as_ref().is_some_and(|stream| !stream.unsent())
    }

    /// What to wait for.
    pub(crate) fn interest(&self) -> Option<Interest> {
        self.stream.as_ref().map(|stream| Interest {
            fd: stream.socket.as_raw_fd(),
            write: stream.unsent(),
        })
    }

    /// When to try to connect again, on the monotonic clock.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        self.stream.is_none().then_some(self.retry_at)
    }

    /// Connects no later than `at`.
    pub(crate) fn hurry(&mut self, at: Duration) {
        self.retry_at = self.retry_at.min(at);
    }

    /// Connects, if that is due. Returns true for a new connection: [`Link::open`] is next.
    pub(crate) fn connect(&mut self, now: Duration) -> bool {
        if self.stream.is_some() || now < self.retry_at {
            return false;
        }
        match sys::connect(&self.path) {
            Ok(socket) => {
                self.stream = Some(Stream {
                    socket,
                    since: now,
                    input: Frames::default(),
                    out: Vec::new(),
                    written: 0,
                    next: None,
                });
                true
            }
            Err(_) => {
                self.retry_later(now);
                false
            }
        }
    }

    /// Introduces the agent on a new connection.
    pub(crate) fn open(&mut self, now: Duration, register: &AgentMessage, state: AgentMessage) {
        if let Some(stream) = &mut self.stream {
            stream.encode(register);
        }
        self.post(now, state);
    }

    /// Sends the newest state, as far as the socket takes it now. Without a connection it is
    /// dropped: a new one begins with the newest state.
    pub(crate) fn post(&mut self, now: Duration, state: AgentMessage) {
        let Some(stream) = &mut self.stream else { return };
        stream.next = Some(state);
        if stream.flush().is_err() {
            self.lose(now);
        }
    }

    /// Reads and writes what is possible now. Returns the orders that came in, oldest first.
    pub(crate) fn drive(&mut self, now: Duration) -> Vec<Target> {
        let mut targets = Vec::new();
        let Some(stream) = &mut self.stream else {
            return targets;
        };
        let result = stream.receive(&mut targets).and_then(|()| Ok(stream.flush()?));
        if result.is_err() {
            self.lose(now);
        }
        targets
    }

    fn lose(&mut self, now: Duration) {
        if let Some(stream) = self.stream.take()
            && now >= stream.since + GOOD_AFTER
        {
            self.pause = RETRY_MIN;
        }
        self.retry_later(now);
    }

    /// Doubles the pause, and spreads the agents of a node over its second half.
    fn retry_later(&mut self, now: Duration) {
        let share = u32::try_from(RandomState::new().build_hasher().finish() % 512).unwrap_or(0);
        self.retry_at = now + self.pause / 2 + self.pause * share / 1024;
        self.pause = (self.pause * 2).min(RETRY_MAX);
    }
}

impl Stream {
    fn unsent(&self) -> bool {
        self.written < self.out.len() || self.next.is_some()
    }

    fn encode(&mut self, message: &AgentMessage) {
        let length = u32::try_from(message.encoded_len()).unwrap_or(u32::MAX);
        self.out.extend_from_slice(&length.to_be_bytes());
        self.out.extend_from_slice(&message.encode_to_vec());
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            if self.written == self.out.len() {
                self.out.clear();
                self.written = 0;
                match self.next.take() {
                    Some(message) => self.encode(&message),
                    None => return Ok(()),
                }
            }
            match self.socket.write(&self.out[self.written..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(n) => self.written += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn receive(&mut self, targets: &mut Vec<Target>) -> Result<(), LinkError> {
        let mut buffer = [0; 4096];
        for _ in 0..READS {
            match self.socket.read(&mut buffer) {
                Ok(0) => return Err(LinkError::Closed),
                Ok(n) => self.input.push(&buffer[..n], targets)?,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// Cuts a byte stream into frames.
#[derive(Debug, Default)]
struct Frames {
    pending: Vec<u8>,
}

impl Frames {
    /// Takes in some bytes and appends the targets that are complete now.
    fn push(&mut self, bytes: &[u8], targets: &mut Vec<Target>) -> Result<(), LinkError> {
        self.pending.extend_from_slice(bytes);
        let mut rest = self.pending.as_slice();
        while let Some((header, body)) = rest.split_first_chunk() {
            let length = u32::from_be_bytes(*header) as usize;
            if length > AGENT_MAX_FRAME {
                return Err(LinkError::Oversized(length));
            }
            let Some((frame, after)) = body.split_at_checked(length) else {
                break;
            };
            targets.push(Target::decode(frame)?);
            rest = after;
        }
        let used = self.pending.len() - rest.len();
        self.pending.drain(..used);
        if self.pending.is_empty() {
            self.pending = Vec::new();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
