//! The floor: as many streams of the same gRPC service with nothing behind them. A server sends a
//! number on each stream, and clients answer it or not. There are no tokens, no Hello and no
//! workers. Server and clients are plain tonic with its TLS settings, so nearly all of their cost
//! is that of gRPC, TLS and the kernel. Lockstep's own cost is what it takes beyond that.
//!
//! A restart with a barrier is two messages and two answers on each stream, which is measured here.

pub(crate) mod clients;
pub(crate) mod server;

use std::path::{Path, PathBuf};

use lockstep_proto::node::v1 as wire;

/// Arguments of both sides.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port of the server on the loopback interface
    #[arg(long)]
    port: u16,
    /// Use TLS, with a certificate in this directory, which the server creates
    #[arg(long)]
    dir: Option<PathBuf>,
    #[arg(long)]
    clients: usize,
}

/// Name in the server's certificate.
const NAME: &str = "bare";

/// The files of the server's certificate and of its key.
fn identity(dir: &Path) -> (PathBuf, PathBuf) {
    (dir.join("bare.crt"), dir.join("bare.key"))
}

/// What the nonce of a ping says.
enum Ping {
    /// A value, which is not answered.
    Value(u64),
    /// A round, which is answered.
    Round(u64),
}

impl Ping {
    fn encode(&self) -> wire::Ping {
        let nonce = match self {
            Self::Value(value) => value << 1,
            Self::Round(round) => round << 1 | 1,
        };
        wire::Ping { nonce }
    }

    fn decode(ping: wire::Ping) -> Self {
        let number = ping.nonce >> 1;
        if ping.nonce & 1 == 1 {
            Self::Round(number)
        } else {
            Self::Value(number)
        }
    }
}
