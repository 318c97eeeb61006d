//! Why a stream to the hub could not be opened, or failed.

use std::io;
use std::path::PathBuf;

use tonic::{Code, Status};

use crate::worker::driver::Closed;

/// Why a stream could not be opened, or failed.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The CA or the token is not there (yet).
    #[error("cannot read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The trusted certificates have expired.
    #[error(
        "all certificates in {0} have expired: the hub's CA was not renewed, or this node's clock is wrong"
    )]
    Expired(PathBuf),
    /// The token cannot be sent.
    #[error("the token cannot be sent as metadata")]
    Token,
    /// The handshake took too long.
    #[error("no answer from the hub")]
    Silent,
    /// The address is not valid, or the handshake failed.
    #[error("{}", chain(.0))]
    Transport(#[from] tonic::transport::Error),
    /// The hub refuses this protocol version.
    #[error("{0}")]
    Refused(String),
    /// The hub chose a protocol version that was not offered.
    #[error("the hub chose protocol {0}")]
    Protocol(u32),
    /// The leader's epoch could not be recorded.
    #[error("the leader's epoch could not be recorded, so its orders are not obeyed: {0}")]
    Epoch(io::Error),
    /// The hub, or the connection to it, failed.
    #[error("{:?}: {}", .0.code(), .0.message())]
    Status(Status),
    /// The hub sent no Welcome in time, or another message first.
    #[error("the hub did not welcome this daemon")]
    NotWelcomed,
    /// The daemon is going down.
    #[error(transparent)]
    Daemon(#[from] Closed),
}

impl From<Status> for SessionError {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::FailedPrecondition => Self::Refused(status.message().to_owned()),
            _ => Self::Status(status),
        }
    }
}

/// The error with its causes: tonic's transport errors say nothing by themselves.
fn chain(error: &tonic::transport::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
