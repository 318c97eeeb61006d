//! Free ports and the build folder of this machine.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range that the kernel takes ports of clients from.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// Loopback addresses on which nobody listens, other ones each time.
///
/// A server that is told of one listens some time later, and not while it is down. The kernel gives none of them to a client meanwhile.
///
/// # Errors
/// When there are not so many.
pub fn free_addresses<const N: usize>() -> Result<[SocketAddr; N]> {
    // Another process begins elsewhere, and one that was started beside it some way off.
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
        let some = std::process::id() % 100 * 200;
        AtomicU16::new(u16::try_from(some).unwrap_or_default())
    });
    let mut listeners = Vec::new();
    for _ in 0..COUNT {
        let port = FIRST + NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        listeners.extend(TcpListener::bind((Ipv4Addr::LOCALHOST, port)));
        if listeners.len() == N {
            break;
        }
    }
    let addresses = listeners
        .iter()
        .map(TcpListener::local_addr)
        .collect::<Result<Vec<_>>>()?;
    addresses
        .try_into()
        .map_err(|_| Error::from(ErrorKind::AddrNotAvailable))
}

/// The build's target directory: cargo's `CARGO_TARGET_DIR`, or the one beside the workspace's members.
#[must_use]
pub fn target_dir() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(beside, PathBuf::from)
}
