use std::net::SocketAddr;

use clap::Parser;
use rustls::pki_types::{CertificateDer, ServerName};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;

use super::*;
use crate::config::args::Args;
use crate::config::settings::Settings;
use crate::net::serve::access;

/// An endpoint on a free port, with a certificate of its own.
struct Endpoint {
    address: SocketAddr,
    dir: TempDir,
    trusted: CertificateDer<'static>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
}

async fn endpoint() -> Endpoint {
    let (dir, trusted) = (tempfile::tempdir().unwrap(), CertificateDer::from(Vec::new()));
    let tls = Settings::new(Args::parse_from(["x"])).unwrap().tls;
    let certificate = Certificate::new(Some(dir.path().to_owned()), tls).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (client, _) = access::tests::api_server();
    let shutdown = CancellationToken::new();
    let token = shutdown.clone();
    let task = tokio::spawn(async move {
        run(
            listener,
            certificate,
            AccessChecker::new(client),
            Arc::new(Metrics::default()),
            &token,
        )
        .await;
    });
    let mut endpoint = Endpoint {
        address,
        dir,
        trusted,
        shutdown,
        task,
    };
    endpoint.trusted = endpoint.new_certificate();
    endpoint
}

impl Endpoint {
    /// Puts a new certificate into the directory.
    fn new_certificate(&self) -> CertificateDer<'static> {
        let made = rcgen::generate_simple_self_signed(["metrics.test".to_owned()]).unwrap();
        std::fs::write(self.dir.path().join("tls.crt"), made.cert.pem()).unwrap();
        std::fs::write(self.dir.path().join("tls.key"), made.signing_key.serialize_pem()).unwrap();
        made.cert.into()
    }

    async fn plain(&self) -> String {
        let stream = TcpStream::connect(self.address).await.unwrap();
        ask(stream, "").await
    }

    async fn secure(&self, token: &str) -> Result<String, std::io::Error> {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(self.trusted.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("metrics.test").unwrap();
        let stream = TcpStream::connect(self.address).await.unwrap();
        let stream = TlsConnector::from(Arc::new(config)).connect(name, stream).await?;
        Ok(ask(stream, &format!("Authorization: Bearer {token}\r\n")).await)
    }
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, header: &str) -> String {
    let request = format!("GET /metrics HTTP/1.1\r\nHost: test\r\n{header}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn only_authorized_clients_read_over_tls() {
    let endpoint = endpoint().await;
    let answer = endpoint.secure("reader").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    assert!(
        answer.contains("# TYPE lockstep_reconcile_seconds histogram"),
        "{answer}"
    );
    let answer = endpoint.secure("stranger").await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    assert!(
        answer.ends_with("Authorization denied for user stranger"),
        "{answer}"
    );
    for token in ["nobody", ""] {
        let answer = endpoint.secure(token).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
}

#[tokio::test]
async fn plain_text_is_for_the_loopback_interface() {
    let endpoint = endpoint().await;
    let answer = endpoint.plain().await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    // A client that names no format gets the older one.
    assert!(
        answer.contains("content-type: text/plain; version=0.0.4"),
        "{answer}"
    );
    assert!(!answer.contains("# EOF"), "{answer}");
    let stream = TcpStream::connect(endpoint.address).await.unwrap();
    let answer = ask(
        stream,
        "Accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n",
    )
    .await;
    assert!(
        answer.contains("content-type: application/openmetrics-text"),
        "{answer}"
    );
    assert!(answer.trim_end().ends_with("# EOF"), "{answer}");
    for (address, expected) in [
        ("127.0.0.1", true),
        ("::1", true),
        ("::ffff:127.0.0.1", true),
        ("10.0.0.1", false),
        ("::ffff:10.0.0.1", false),
    ] {
        assert_eq!(is_loopback(address.parse().unwrap()), expected, "{address}");
    }
}

#[tokio::test]
async fn plain_text_from_another_machine_is_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let tls = Settings::new(Args::parse_from(["x"])).unwrap().tls;
    let server = Arc::new(Server {
        certificate: Certificate::new(None, tls).unwrap(),
        plain: Router::new(),
        secure: Router::new(),
    });
    let ask = tokio::spawn(async move { ask(TcpStream::connect(address).await.unwrap(), "").await });
    let (stream, _) = listener.accept().await.unwrap();
    server
        .serve(stream, false, Arc::default(), CancellationToken::new())
        .await;
    let answer = ask.await.unwrap();
    assert!(answer.starts_with("HTTP/1.0 400"), "{answer}");
    assert!(answer.contains("HTTP request to an HTTPS server"), "{answer}");
}

#[tokio::test]
async fn a_new_certificate_is_used_from_the_next_connection_on() {
    let mut endpoint = endpoint().await;
    endpoint.secure("reader").await.unwrap();
    let new = endpoint.new_certificate();
    endpoint.secure("reader").await.unwrap_err();
    endpoint.trusted = new;
    endpoint.secure("reader").await.unwrap();
}

#[tokio::test]
async fn it_ends_with_silent_clients_there() {
    let endpoint = endpoint().await;
    let _silent = TcpStream::connect(endpoint.address).await.unwrap();
    endpoint.plain().await;
    endpoint.shutdown.cancel();
    tokio::time::timeout(2 * CONNECTIONS.grace, endpoint.task)
        .await
        .unwrap()
        .unwrap();
}
