//! Messages that no daemon sends.

use std::error::Error as _;

use thiserror::Error;
use tonic::{Code, Status};

/// What is wrong with one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub(super) enum ProtocolViolation {
    /// Larger than all that is kept of a node.
    #[error("the message is too large: {0}")]
    Oversized(String),
    /// No message at all.
    #[error("the message cannot be read: {0}")]
    Malformed(String),
    /// A stream has one Hello: another one would repeat what was negotiated.
    #[error("a second Hello on the same stream")]
    SecondHello,
    /// Of a protocol that was not agreed on.
    #[error("a message of a kind that the protocol of the stream does not have")]
    UnknownKind,
}

impl ProtocolViolation {
    /// What the stream's error says about the message; nothing where the connection is at fault.
    pub(super) fn of(status: &Status) -> Option<Self> {
        let text = || status.message().to_owned();
        match status.code() {
            Code::OutOfRange => Some(Self::Oversized(text())),
            // Those of the connection have a source.
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
