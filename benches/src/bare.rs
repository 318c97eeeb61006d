//! The floor: as many streams of the same gRPC service with nothing behind them. A server sends each a number, and clients answer it or do not; no token,
//! no Hello, no worker. They are written as one writes them with tonic, whose TLS settings they have. What Lockstep takes beyond that is Lockstep's; what this
//! takes is, all but a little, that of gRPC, TLS and the kernel.
//!
//! A restart with a barrier is two messages and two answers on each stream, so that is what is measured of it here.

pub(crate) mod clients;
pub(crate) mod server;

use std::path::{Path, PathBuf};

use lockstep_proto::node::v1 as wire;

/// Of either side.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Port of the server on the loopback interface
    #[arg(long)]
    port: u16,
    /// Speaks TLS, with a certificate in this directory that the server makes
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

/// A number, and whether it is to be answered, in one.
fn ping(number: u64, answer: bool) -> wire::Ping {
    wire::Ping {
        nonce: number << 1 | u64::from(answer),
    }
}

/// The same apart.
fn said(ping: wire::Ping) -> (u64, bool) {
    (ping.nonce >> 1, ping.nonce & 1 == 1)
}
