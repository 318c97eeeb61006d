//! The protocol of a stream: its first message, and messages that no correct daemon sends.

use std::error::Error as _;
use std::time::Duration;

use lockstep_proto::NODE_PROTOCOL;
use lockstep_proto::node::v1::{self as pb, node_message::Kind};
use thiserror::Error;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Status};

use super::convert;

/// How long a daemon may take to say hello.
const HELLO_WITHIN: Duration = Duration::from_secs(10);

/// Why a stream was refused.
#[derive(Debug, Error)]
pub(super) enum HandshakeError {
    #[error("no Hello within {} s", HELLO_WITHIN.as_secs())]
    Silent,
    #[error("the stream ended before its Hello")]
    Ended,
    #[error("the first message must be Hello")]
    NotHello,
    #[error(
        "the node daemon {version} speaks node protocol {min} to {max}, this control plane {} to {}: upgrade the older of the two",
        NODE_PROTOCOL.start(),
        NODE_PROTOCOL.end()
    )]
    Version { version: String, min: u32, max: u32 },
    #[error(transparent)]
    ProtocolViolation(#[from] ProtocolViolation),
}

impl HandshakeError {
    /// Its name in metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Silent => "silent",
            Self::Ended => "ended",
            Self::NotHello => "no_hello",
            Self::Version { .. } => "protocol",
            Self::ProtocolViolation(violation) => violation.reason(),
        }
    }
}

impl From<HandshakeError> for Status {
    fn from(error: HandshakeError) -> Self {
        let text = error.to_string();
        match error {
            HandshakeError::Silent => Self::deadline_exceeded(text),
            HandshakeError::Ended | HandshakeError::NotHello => Self::invalid_argument(text),
            HandshakeError::Version { .. } => Self::failed_precondition(text),
            HandshakeError::ProtocolViolation(violation) => violation.into(),
        }
    }
}

/// What is wrong with a message.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ProtocolViolation {
    /// Larger than everything that is kept of a node.
    #[error("the message is too large: {0}")]
    Oversized(String),
    /// Not a message at all.
    #[error("the message cannot be read: {0}")]
    Malformed(String),
    /// A stream has one Hello. A second one would negotiate again.
    #[error("a second Hello on the same stream")]
    SecondHello,
    /// From another protocol version than the negotiated one.
    #[error("a message of a kind that the stream's protocol does not have")]
    UnknownKind,
}

impl ProtocolViolation {
    /// The violation that the stream's error stands for; `None` if the connection is at fault.
    pub(super) fn of(status: &Status) -> Option<Self> {
        let text = || status.message().to_owned();
        match status.code() {
            Code::OutOfRange => Some(Self::Oversized(text())),
            // Errors of the connection have a source.
            Code::Internal if status.source().is_none() => Some(Self::Malformed(text())),
            _ => None,
        }
    }

    /// Its name in metrics.
    pub(super) fn reason(&self) -> &'static str {
        match self {
            Self::Oversized(_) => "oversized",
            Self::Malformed(_) => "malformed",
            Self::SecondHello => "second_hello",
            Self::UnknownKind => "unknown_message",
        }
    }
}

impl From<ProtocolViolation> for Status {
    fn from(violation: ProtocolViolation) -> Self {
        let text = violation.to_string();
        match violation {
            ProtocolViolation::Oversized(_) => Self::resource_exhausted(text),
            _ => Self::invalid_argument(text),
        }
    }
}

/// Reads the Hello and settles the protocol version: the highest that both sides speak.
pub(super) async fn hello<S>(inbound: &mut S) -> Result<(pb::Hello, u32), HandshakeError>
where
    S: Stream<Item = Result<pb::NodeMessage, Status>> + Unpin,
{
    let first = tokio::time::timeout(HELLO_WITHIN, inbound.next())
        .await
        .map_err(|_| HandshakeError::Silent)?
        .ok_or(HandshakeError::Ended)?
        .map_err(|status| {
            ProtocolViolation::of(&status).map_or(HandshakeError::Ended, HandshakeError::ProtocolViolation)
        })?;
    let Some(Kind::Hello(hello)) = first.kind else {
        return Err(HandshakeError::NotHello);
    };
    let version = hello.protocol_max.min(*NODE_PROTOCOL.end());
    if version < hello.protocol_min || !NODE_PROTOCOL.contains(&version) {
        return Err(HandshakeError::Version {
            version: convert::text_from(hello.daemon_version),
            min: hello.protocol_min,
            max: hello.protocol_max,
        });
    }
    Ok((hello, version))
}
