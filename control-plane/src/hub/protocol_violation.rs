//! Messages that no correct daemon sends.

use std::error::Error as _;

use thiserror::Error;
use tonic::{Code, Status};

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
