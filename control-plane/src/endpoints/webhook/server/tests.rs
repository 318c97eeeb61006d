use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use clap::Parser as _;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

use super::run;
use crate::config::args::Args;
use crate::config::settings::Settings;
use crate::endpoints::webhook::cert::{Certificate, Current, Pair, Service};

struct Server {
    address: SocketAddr,
    certificate: watch::Sender<Certificate>,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    /// Notified when a request has arrived.
    arrived: Arc<Notify>,
    /// Lets that request be answered.
    answer: Arc<Notify>,
}

impl Server {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (certificate, certificates) = watch::channel(None);
        let shutdown = CancellationToken::new();
        let (arrived, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let notify = (Arc::clone(&arrived), Arc::clone(&answer));
        let slow = move || {
            let (arrived, answer) = notify.clone();
            async move {
                arrived.notify_one();
                answer.notified().await;
                "slow"
            }
        };
        let router = Router::new()
            .route("/fast", get(|| async { "fast" }))
            .route("/slow", get(slow));
        let options = Settings::new(Args::parse_from(["x"])).unwrap().tls;
        let tls = Arc::new(options.server(Arc::new(Current(certificates))).unwrap());
        let end = shutdown.clone();
        let task = tokio::spawn(async move { run(listener, tls, router, &end).await });
        Self {
            address,
            certificate,
            shutdown,
            task,
            arrived,
            answer,
        }
    }

    fn serve_with(&self, pair: &Pair) {
        self.certificate.send_replace(Some(pair.certified().unwrap()));
    }

    async fn connect(&self, trusted: &Pair) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(trusted.authority.current.cert.as_bytes()).unwrap())
            .unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("service.ns.svc").unwrap();
        let stream = TcpStream::connect(self.address).await?;
        TlsConnector::from(Arc::new(config)).connect(name, stream).await
    }
}

async fn ask(stream: &mut TlsStream<TcpStream>, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
}

async fn answer(mut stream: TlsStream<TcpStream>) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

fn pair() -> Pair {
    let service = Service {
        namespace: "ns",
        name: "service",
    };
    Pair::generate(service, jiff::Timestamp::now()).unwrap()
}

#[tokio::test]
async fn each_connection_is_served_with_the_newest_certificate() {
    let server = Server::start().await;
    let (one, two) = (pair(), pair());
    assert!(server.connect(&one).await.is_err());
    for (newest, other) in [(&one, &two), (&two, &one)] {
        server.serve_with(newest);
        assert!(server.connect(other).await.is_err());
        let mut stream = server.connect(newest).await.unwrap();
        ask(&mut stream, "/fast").await;
        assert!(answer(stream).await.ends_with("fast"));
    }
}

#[tokio::test]
async fn a_silent_client_delays_no_other() {
    let server = Server::start().await;
    let pair = pair();
    server.serve_with(&pair);
    let silent = TcpStream::connect(server.address).await.unwrap();
    let mut nonsense = TcpStream::connect(server.address).await.unwrap();
    nonsense.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut stream = server.connect(&pair).await.unwrap();
    ask(&mut stream, "/fast").await;
    assert!(answer(stream).await.ends_with("fast"));
    drop(silent);
}

#[tokio::test]
async fn requests_under_way_are_answered_at_the_shutdown_and_idle_connections_closed() {
    let server = Server::start().await;
    let pair = pair();
    server.serve_with(&pair);
    let idle = server.connect(&pair).await.unwrap();
    let mut busy = server.connect(&pair).await.unwrap();
    ask(&mut busy, "/slow").await;
    server.arrived.notified().await;
    server.shutdown.cancel();
    server.answer.notify_one();
    assert!(answer(busy).await.ends_with("slow"));
    tokio::time::timeout(Duration::from_secs(5), server.task)
        .await
        .expect("it ends although a connection is idle")
        .unwrap();
    drop(idle);
}
