//! Free ports and the build folder of this machine.

use std::io::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

/// The ports are below the kernel's range for clients.
const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;

/// Free loopback addresses, different ones at each call.
///
/// A server may listen on one later, and may be down in between: the kernel gives none of them to a
/// client meanwhile.
///
/// # Errors
/// If there are not enough.
pub fn free_addresses<const N: usize>() -> Result<[SocketAddr; N]> {
    // Each process begins at another port, far from that of a process that was started beside it.
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

/// A free port of the loopback address, see [`free_addresses`].
///
/// # Errors
/// If there is none.
pub fn free_port() -> Result<u16> {
    let [address] = free_addresses()?;
    Ok(address.port())
}

/// The build's target directory: `CARGO_TARGET_DIR`, or `target` in the workspace.
#[must_use]
pub fn target_dir() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("target");
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(beside, PathBuf::from)
}
