//! The whole life of two authorities, and a stream that lives through the change.

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
use crate::tls::hub::serving;
use crate::tls::serving::{Certificate, accept, grpc};
use crate::tls::{Door, SERVER_NAME};

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().unwrap()
}

/// The same after it was in a Secret, as every other replica sees it.
fn reread(authority: &Authority) -> Authority {
    let read = Authority::from_data(&authority.to_data(), Timestamp::UNIX_EPOCH).unwrap();
    assert_eq!(read, *authority);
    read
}

/// Steps at `now`, where there is something to do.
fn step(authority: &Authority, now: Timestamp) -> Option<Authority> {
    let after = reread(authority).step(now).unwrap();
    after.map(|(after, _)| after)
}

#[test]
fn one_authority_takes_the_place_of_another_in_three_steps() {
    let first = Authority::generate(start()).unwrap();
    assert_eq!(step(&first, start() + days(364)), None);

    let at = start() + days(365);
    let announced = step(&first, at).unwrap();
    assert_eq!(
        announced.current, first.current,
        "it does not sign before it is known"
    );
    let next = announced.next.clone().unwrap().0;
    assert_eq!(announced.trusted(), format!("{}{}", first.trusted(), next.cert));
    assert_eq!(step(&announced, at + SignedDuration::from_hours(23)), None);

    let at = at + days(1);
    let replaced = step(&announced, at).unwrap();
    assert_eq!(replaced.current, next);
    assert_eq!(replaced.trusted(), format!("{}{}", next.cert, first.trusted()));
    assert_eq!(step(&replaced, at + days(29)), None);

    let at = at + days(30);
    let forgotten = step(&replaced, at).unwrap();
    assert_eq!(forgotten.trusted(), next.cert);
    assert!(!forgotten.to_data().contains_key("next.key"));
    assert_eq!(step(&forgotten, at), None);
    // All over again, a year after it began to sign.
    assert!(step(&forgotten, at + days(365 - 30)).is_some());
}

#[test]
fn an_authority_of_before_is_as_old_as_its_secret() {
    let ca = Ca::generate(CA_NAME, None).unwrap();
    let data = [(CA_CERT, ca.cert), (CA_KEY, ca.key)];
    let data: BTreeMap<String, ByteString> = data
        .into_iter()
        .map(|(key, pem)| (key.to_owned(), ByteString(pem.into_bytes())))
        .collect();
    let read = Authority::from_data(&data, start()).unwrap();
    assert_eq!(step(&read, start() + days(364)), None);
    assert!(step(&read, start() + days(365)).is_some());

    let mut damaged = read.to_data();
    damaged.remove(CA_KEY);
    let error = Authority::from_data(&damaged, start()).unwrap_err();
    assert!(error.to_string().contains(CA_KEY), "{error}");
}

/// A server that sends back what it gets, with the certificate of the moment.
async fn echo(certificate: watch::Receiver<Certificate>) -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let door = Door::new(256, |_, _| {});
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

/// A client that trusts exactly this.
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
async fn no_stream_is_dropped_and_who_has_heard_of_the_change_can_always_connect() {
    // Certificates are good from the day before: their dates are checked by the clock.
    let now = Timestamp::now();
    let validity = || Some(Validity::days(now, SERVING_DAYS));
    let first = Authority::generate(now).unwrap();
    let (certificate, current) = watch::channel(Some(serving(&first.current, validity()).unwrap()));
    let address = echo(current).await;
    let mut standing = connect(address, &first.trusted()).await.unwrap();
    talks(&mut standing).await;

    let announced = step(&first, now + SIGNS).unwrap();
    talks(&mut connect(address, &announced.trusted()).await.unwrap()).await;
    // A replica that has not been started since still signs with the first: both must do.
    let replaced = step(&announced, now + SIGNS + ANNOUNCED).unwrap();
    talks(&mut connect(address, &replaced.trusted()).await.unwrap()).await;

    certificate.send_replace(Some(serving(&replaced.current, validity()).unwrap()));
    talks(&mut standing).await;
    for trusted in [announced.trusted(), replaced.trusted()] {
        talks(&mut connect(address, &trusted).await.unwrap()).await;
    }
    let unaware = connect(address, &first.trusted()).await;
    assert!(unaware.is_err(), "it is signed by another one");

    let forgotten = step(&replaced, now + SIGNS + ANNOUNCED + REMEMBERED).unwrap();
    talks(&mut connect(address, &forgotten.trusted()).await.unwrap()).await;
    talks(&mut standing).await;
}

#[tokio::test]
async fn a_client_that_is_slow_with_its_handshake_holds_up_nobody() {
    let authority = Authority::generate(Timestamp::now()).unwrap();
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
