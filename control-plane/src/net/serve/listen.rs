//! Opens a listening socket for an address that may be unspecified (`[::]`).
//!
//! Promises: `[::]` accepts IPv4 too, regardless of the host's default. On a host without IPv6 it
//! means `0.0.0.0`.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{setsockopt, sockopt};
use tokio::net::{TcpListener, TcpSocket};

/// The backlog of unaccepted connections, the same as with [`TcpListener::bind`].
const BACKLOG: u32 = 1024;
/// How long to wait before retrying an address that another process uses.
const RETRY: Duration = Duration::from_secs(1);
/// How many attempts pass between log lines.
const LOG_EVERY: u64 = 60;

/// Listens on `address`.
///
/// # Errors
/// The address cannot be bound.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    if !address.is_ipv6() || !address.ip().is_unspecified() {
        return TcpListener::bind(address).await;
    }
    match dual_stack(address) {
        Err(error) if is_without_ipv6(&error) => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())).await
        }
        listening => listening,
    }
}

/// Listens on `address` once it is free. Another process may use it: one that is about to end, or
/// another replica on the same host. `what` names the server in the log. If readiness depends on
/// this server ([`super::Awaited`]), the replica is not ready until then. Cancel-safe.
pub(crate) async fn listen_once_free(address: SocketAddr, what: &'static str) -> TcpListener {
    for attempt in 0_u64.. {
        let listener = listen(address).await;
        match listener.and_then(|listener| Ok((listener.local_addr()?, listener))) {
            Ok((address, listener)) => {
                tracing::info!(%address, "{what} listening");
                return listener;
            }
            Err(error) if attempt.is_multiple_of(LOG_EVERY) => {
                tracing::warn!(%address, %error, "{what} cannot listen, will retry every second");
            }
            Err(_) => {}
        }
        tokio::time::sleep(RETRY).await;
    }
    std::future::pending().await
}

fn dual_stack(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v6()?;
    setsockopt(&socket, sockopt::Ipv6V6Only, &false)?;
    // As [`TcpListener::bind`] does: a restart need not wait for old connections to end.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// True if the host, or its network namespace, has no IPv6.
fn is_without_ipv6(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EAFNOSUPPORT | Errno::EADDRNOTAVAIL))
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::net::SocketAddr;
    use std::time::Duration;

    use nix::errno::Errno;
    use nix::sys::socket::{getsockopt, sockopt};
    use tokio::net::TcpStream;

    use super::{is_without_ipv6, listen, listen_once_free};

    #[tokio::test]
    async fn every_address_means_those_of_ipv4_too() {
        let listener = listen("[::]:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        if address.is_ipv6() {
            assert!(!getsockopt(&listener, sockopt::Ipv6V6Only).unwrap());
        }
        let client = TcpStream::connect(("127.0.0.1", address.port())).await.unwrap();
        let (_, peer) = listener.accept().await.unwrap();
        assert_eq!(peer.port(), client.local_addr().unwrap().port());
        assert!(peer.ip().to_canonical().is_loopback());
    }

    #[tokio::test]
    async fn one_address_is_that_one() {
        let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        assert!(address.ip().is_loopback());
        let taken = listen(address).await.unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
        let all = SocketAddr::new("::".parse().unwrap(), address.port());
        let taken = listen(all).await.unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_taken_is_waited_for() {
        let before = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = before.local_addr().unwrap();
        let mut waiting = std::pin::pin!(listen_once_free(address, "test"));
        let early = tokio::time::timeout(Duration::from_secs(5), &mut waiting).await;
        assert!(early.is_err());
        drop(before);
        assert_eq!(waiting.await.local_addr().unwrap(), address);
    }

    #[test]
    fn ipv4_is_used_only_without_ipv6() {
        for (errno, expected) in [
            (Errno::EAFNOSUPPORT, true),
            (Errno::EADDRNOTAVAIL, true),
            (Errno::EADDRINUSE, false),
            (Errno::EACCES, false),
            (Errno::EMFILE, false),
        ] {
            assert_eq!(is_without_ipv6(&errno.into()), expected, "{errno}");
        }
        assert!(!is_without_ipv6(&io::Error::other("something else")));
    }
}
