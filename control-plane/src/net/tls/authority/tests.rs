//! When a new CA is due, and a stream that survives the rotation.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::StreamExt as _;

use super::*;
use crate::net::tls::Validity;
use crate::net::tls::hub::serving;
use crate::net::tls::rotation::{ANNOUNCED, REMEMBERED};
use crate::net::tls::serving::{Certificate, accept, grpc};
use crate::net::tls::{ConnectionLimit, SERVER_NAME};

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

const fn days(days: i64) -> SignedDuration {
    SignedDuration::from_hours(24 * days)
}

/// The same after a round trip through a Secret, as every other replica sees it.
fn reread(authority: &Authority) -> Authority {
    let mut data = BTreeMap::new();
    authority.put(&mut data);
    let read = Authority::from_data(&data, Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(read, *authority);
    read
}

/// The step at `now`, if there is one.
fn step(authority: &Authority, now: Timestamp) -> Option<(Authority, Change)> {
    reread(authority).step(now).unwrap()
}

/// Checks that these are the only steps at `now`, and continues with the result.
fn steps(authority: &mut Authority, now: Timestamp, expected: &[Change]) {
    let mut seen = Vec::new();
    while let Some((after, change)) = step(authority, now) {
        *authority = after;
        seen.push(change);
    }
    assert_eq!(seen, expected, "at {now}");
}

#[test]
fn another_one_is_due_a_year_after_one_began_to_sign() {
    use Change::{Forgotten, Made, Renewed, Signs, Told};
    let mut authority = Authority::generate(start()).unwrap();
    steps(&mut authority, start() + days(364), &[]);
    steps(&mut authority, start() + days(365), &[Made, Told]);
    steps(&mut authority, start() + days(366), &[Signs]);
    steps(&mut authority, start() + days(396), &[Forgotten]);
    steps(&mut authority, start() + days(366 + 364), &[]);
    steps(&mut authority, start() + days(366 + 365), &[Made, Told]);

    // The CA was created by a clock that was years ahead: it is valid from now on, and signs for a
    // year from now, not from then.
    let mut early = Authority::generate(start()).unwrap();
    let before = start() - days(3000);
    steps(&mut early, before, &[Renewed]);
    steps(&mut early, before + days(364), &[]);
    steps(&mut early, before + days(365), &[Made, Told]);
}

#[test]
fn an_authority_of_an_earlier_version_is_as_old_as_its_secret() {
    let mut data = BTreeMap::new();
    Authority::generate(start()).unwrap().put(&mut data);
    data.remove(CA_SINCE);
    let read = Authority::from_data(&data, start()).unwrap();
    assert_eq!(step(&read, start() + days(364)), None);
    assert!(step(&read, start() + days(365)).is_some());

    for (key, text) in [("ca.key", ""), ("ca.crt", "nonsense"), (CA_SINCE, "yesterday")] {
        let mut damaged = data.clone();
        damaged.insert(key.to_owned(), ByteString(text.into()));
        let error = Authority::from_data(&damaged, start()).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}

/// An echo server with the current certificate.
async fn echo(certificate: watch::Receiver<Certificate>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let door = ConnectionLimit::new(256, |_, _| {});
    let connections = accept(listener, grpc(certificate).unwrap(), door);
    tokio::spawn(async move {
        let mut connections = std::pin::pin!(connections);
        while let Some(guest) = connections.next().await {
            let (mut from, mut to) = tokio::io::split(guest.unwrap().stream);
            tokio::spawn(async move { tokio::io::copy(&mut from, &mut to).await });
        }
    });
    address
}

/// A client that trusts only this.
async fn connect(address: std::net::SocketAddr, trusted: &str) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    for ca in CertificateDer::pem_slice_iter(trusted.as_bytes()) {
        roots.add(ca.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from(SERVER_NAME).unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, tcp).await
}

async fn talks(stream: &mut TlsStream<TcpStream>) {
    stream.write_all(b"?").await.unwrap();
    let mut answer = [0];
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(answer, *b"?");
}

#[tokio::test]
async fn no_stream_is_dropped_and_informed_clients_can_always_connect() {
    // Certificates are valid from the day before, as the clock checks their dates.
    let now = Timestamp::now();
    let validity = || Some(Validity::days(now, SERVING_DAYS));
    let first = Authority::generate(now).unwrap();
    let served = |authority: &Authority| Some(serving(&authority.rotation.current, validity()).unwrap());
    let trusted = |authority: &Authority| authority.rotation.trusted();
    let (certificate, current) = watch::channel(served(&first));
    let address = echo(current).await;
    let mut standing = connect(address, &trusted(&first)).await.unwrap();
    talks(&mut standing).await;

    let mut announced = first.clone();
    steps(&mut announced, now + SIGNS, &[Change::Made, Change::Told]);
    talks(&mut connect(address, &trusted(&announced)).await.unwrap()).await;
    // A replica that has not restarted since still signs with the first CA: both must work.
    let mut replaced = announced.clone();
    steps(&mut replaced, now + SIGNS + ANNOUNCED, &[Change::Signs]);
    talks(&mut connect(address, &trusted(&replaced)).await.unwrap()).await;

    certificate.send_replace(served(&replaced));
    talks(&mut standing).await;
    for trusted in [trusted(&announced), trusted(&replaced)] {
        talks(&mut connect(address, &trusted).await.unwrap()).await;
    }
    let unaware = connect(address, &trusted(&first)).await;
    assert!(unaware.is_err(), "another CA signed it");

    let mut forgotten = replaced;
    steps(
        &mut forgotten,
        now + SIGNS + ANNOUNCED + REMEMBERED,
        &[Change::Forgotten],
    );
    talks(&mut connect(address, &trusted(&forgotten)).await.unwrap()).await;
    talks(&mut standing).await;
}

#[tokio::test]
async fn a_slow_handshake_delays_no_other_client() {
    let authority = Authority::generate(Timestamp::now()).unwrap();
    let authority = authority.rotation;
    let certificate = serving(&authority.current, None).unwrap();
    let address = echo(watch::channel(Some(certificate)).1).await;
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    let mut plain = TcpStream::connect(address).await.unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    talks(&mut connect(address, &authority.trusted()).await.unwrap()).await;
}
