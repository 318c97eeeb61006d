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
fn ipv4_takes_over_only_where_there_is_no_ipv6() {
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
