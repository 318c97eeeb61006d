//! Clients that are not daemons, and daemons that lie: they are refused with a reason and counted,
//! and no other client notices.

use std::net::Ipv4Addr;
use std::time::Instant;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;

use super::super::service::STREAMS;
use super::identity::welcomed;
use super::*;

const SOON: Duration = Duration::from_secs(10);

impl Hub {
    /// Waits until this many were refused for this reason.
    async fn has_refused(&self, reason: &'static str, count: u64) {
        let all = async {
            while self.refusals.count(reason) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let counted = tokio::time::timeout(SOON, all).await;
        let now = self.refusals.count(reason);
        assert!(counted.is_ok() && now == count, "{reason}: {now}, not {count}");
        // The number does not matter: all tests share one client address, or one faulty node.
        assert_eq!(self.refusals.logged(reason), usize::from(count > 0), "{reason}");
    }

    /// A TLS connection without any message yet.
    async fn silent(&self) -> tokio_rustls::client::TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap();
        roots.add(ca).unwrap();
        let mut config = rustls::ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let name = ServerName::try_from(tls::SERVER_NAME).unwrap();
        let tcp = TcpStream::connect(self.address).await.unwrap();
        TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn a_client_without_tls_learns_the_reason() {
    let hub = Hub::start().await;
    for (reason, said) in [
        "GET / HTTP/1.1\r\nhost: hub\r\n\r\n",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ]
    .into_iter()
    .enumerate()
    {
        let mut client = TcpStream::connect(hub.address).await.unwrap();
        client.write_all(said.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).await.unwrap();
        assert!(
            answer.contains("400 Bad Request") && answer.contains("HTTPS"),
            "{answer}"
        );
        hub.has_refused("plain_text", reason as u64 + 1).await;
    }
    // A probe of the port is not a fault.
    drop(TcpStream::connect(hub.address).await.unwrap());
    welcomed(&hub, "n1", 3).await;
    hub.has_refused("plain_text", 2).await;
}

#[tokio::test]
async fn nonsense_in_the_place_of_tls_and_of_http_ends_the_connection() {
    let hub = Hub::start().await;
    let mut client = TcpStream::connect(hub.address).await.unwrap();
    client.write_all(b"\x16\x03\x01\xff\xffnonsense").await.unwrap();
    let mut rest = Vec::new();
    let _ = tokio::time::timeout(SOON, client.read_to_end(&mut rest))
        .await
        .unwrap();
    hub.has_refused("tls", 1).await;

    let mut client = hub.silent().await;
    client.write_all(&[b'x'; 1024]).await.unwrap();
    let _ = tokio::time::timeout(SOON, client.read_to_end(&mut rest))
        .await
        .unwrap();
    hub.has_refused("not_http2", 1).await;
    welcomed(&hub, "n1", 3).await;
}

#[tokio::test]
async fn frames_that_no_client_sends_end_the_connection_and_are_counted() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let other = welcomed(&hub, "n1", 3).await;
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    // Settings on a stream; data on no stream; malformed headers.
    let frames: [&[u8]; 3] = [
        &[0, 0, 0, 4, 0, 0, 0, 0, 1],
        &[0, 0, 1, 0, 0, 0, 0, 0, 0, b'x'],
        &[0, 0, 4, 1, 5, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff],
    ];
    for (number, frame) in frames.into_iter().enumerate() {
        let mut client = hub.silent().await;
        let said = [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..], frame].concat();
        client.write_all(&said).await.unwrap();
        let mut rest = Vec::new();
        let _ = tokio::time::timeout(SOON, client.read_to_end(&mut rest))
            .await
            .unwrap();
        hub.has_refused("http2", number as u64 + 1).await;
    }
    other.is_served(&link, 1).await;
    assert_eq!(hub.refusals.count("not_http2"), 0);
}

#[tokio::test]
async fn a_daemon_that_trusts_another_authority_leaves_and_the_hub_knows_why() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let served = welcomed(&hub, "n1", 3).await;
    let other = tempfile::tempdir().unwrap();
    tls::from_dir(other.path()).unwrap();
    let ca = std::fs::read_to_string(other.path().join("ca.crt")).unwrap();
    let trusting = ClientTlsConfig::new()
        .ca_certificate(Certificate::from_pem(ca))
        .domain_name(tls::SERVER_NAME);
    let endpoint = Channel::from_shared(format!("https://{}", hub.address)).unwrap();
    let endpoint = endpoint.tls_config(trusting).unwrap();
    for refused in 1..=2 {
        assert!(endpoint.connect().await.is_err());
        hub.has_refused("certificate", refused).await;
    }
    served.is_served(&link, 1).await;
}

#[tokio::test]
async fn a_second_hello_ends_its_stream_and_no_other() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let other = welcomed(&hub, "n1", 3).await;
    let mut node = welcomed(&hub, "n2", 3).await;
    let replayed = node_message::Kind::Hello(hello(vec![]));
    node.tx
        .send(pb::NodeMessage { kind: Some(replayed) })
        .await
        .unwrap();
    let end = node.ends().await;
    assert_eq!(end.code(), Code::InvalidArgument);
    assert!(end.message().contains("a second Hello"), "{end}");
    hub.has_refused("second_hello", 1).await;
    other.is_served(&link, 1).await;
}

#[tokio::test]
async fn a_node_that_says_hello_again_and_again_is_slowed_and_no_other() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let other = welcomed(&hub, "n1", 3).await;
    let began = Instant::now();
    for _ in 0..35 {
        welcomed(&hub, "n2", 3).await;
    }
    // Twenty at once, and ten in a second.
    assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
    // One of its streams is open, and the hub still reads it.
    let again = welcomed(&hub, "n2", 3).await;
    assert_eq!(hub.registry.connected(), 2);
    other.is_served(&link, 1).await;
    drop(again);
}

#[tokio::test]
async fn a_daemon_that_says_much_of_itself_fills_no_log() {
    let hub = Hub::start().await;
    let wordy = pb::Hello {
        protocol_min: 4,
        protocol_max: 5,
        daemon_version: "\n\u{1b}[2J".repeat(100) + &"x".repeat(1 << 20),
        ..hello(vec![])
    };
    let refused = hub.connect("n1", wordy).await.err().unwrap();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().len() < 512 && !refused.message().contains(char::is_control));
    assert!(refused.message().contains("4 to 5"), "{refused}");
    hub.has_refused("protocol", 1).await;
}

#[tokio::test]
async fn a_message_of_an_unknown_kind_ends_its_stream_and_no_other() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let other = welcomed(&hub, "n1", 3).await;
    for refused in 1..=2 {
        let mut node = welcomed(&hub, "n2", 3).await;
        node.tx.send(pb::NodeMessage { kind: None }).await.unwrap();
        assert_eq!(node.ends().await.code(), Code::InvalidArgument);
        hub.has_refused("unknown_message", refused).await;
    }
    other.is_served(&link, 1).await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_not_read() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let other = welcomed(&hub, "n1", 3).await;
    let mut large = worker(pb::Phase::Running, 0, 1);
    large.detail = "x".repeat(5 << 20);
    // Both as a Report and as the first message.
    let mut node = welcomed(&hub, "n2", 3).await;
    let report = pb::Report {
        workers: vec![large.clone()],
        ..pb::Report::default()
    };
    let kind = Some(node_message::Kind::Report(report));
    node.tx.send(pb::NodeMessage { kind }).await.unwrap();
    let end = node.ends().await;
    assert_eq!(end.code(), Code::ResourceExhausted);
    assert!(end.message().contains("too large"), "{end}");
    hub.has_refused("oversized", 1).await;
    let refused = hub.connect("n2", hello(vec![large])).await.err().unwrap();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    hub.has_refused("oversized", 2).await;
    other.is_served(&link, 1).await;
}

/// Messages to the hub that are only these bytes.
#[derive(Clone, Default)]
pub(super) struct Bytes;

impl tonic::codec::Codec for Bytes {
    type Encode = Vec<u8>;
    type Decode = pb::HubMessage;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl tonic::codec::Encoder for Bytes {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, to: &mut tonic::codec::EncodeBuf<'_>) -> Result<(), Status> {
        bytes::BufMut::put_slice(to, &item);
        Ok(())
    }
}

impl tonic::codec::Decoder for Bytes {
    type Item = pb::HubMessage;
    type Error = Status;

    fn decode(&mut self, from: &mut tonic::codec::DecodeBuf<'_>) -> Result<Option<pb::HubMessage>, Status> {
        let message = prost::Message::decode(from);
        message
            .map(Some)
            .map_err(|error: prost::DecodeError| Status::internal(error.to_string()))
    }
}

impl Hub {
    /// Sends any bytes as the daemon of a node.
    pub(super) async fn says_bytes(
        &self,
        node: &str,
        messages: impl tokio_stream::Stream<Item = Vec<u8>> + Send + 'static,
    ) -> Result<Streaming<pb::HubMessage>, Status> {
        let tls = ClientTlsConfig::new()
            .ca_certificate(Certificate::from_pem(&self.ca))
            .domain_name(tls::SERVER_NAME);
        let endpoint = Channel::from_shared(format!("https://{}", self.address)).unwrap();
        let channel = endpoint.tls_config(tls).unwrap().connect().await.unwrap();
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let mut request = Request::new(messages);
        let authorization = format!("Bearer {}", self.cluster.token(node));
        request
            .metadata_mut()
            .insert("authorization", authorization.parse().unwrap());
        let path = "/lockstep.node.v1.NodeHub/Connect".parse().unwrap();
        let answer: tonic::Response<Streaming<pb::HubMessage>> =
            client.streaming(request, path, Bytes).await?;
        Ok(answer.into_inner())
    }
}

#[tokio::test]
async fn a_message_that_is_none_is_refused() {
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let other = welcomed(&hub, "n1", 3).await;
    for count in 1..=2 {
        // Field 1 claims 127 bytes, but has two.
        let said = tokio_stream::iter([vec![0x0a, 0x7f, 0x00, 0x00]]);
        let refused = hub.says_bytes("n2", said).await.err().unwrap();
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("cannot be read"), "{refused}");
        hub.has_refused("malformed", count).await;
    }
    other.is_served(&link, 1).await;
}

#[tokio::test]
async fn a_thousand_connections_of_one_client_keep_no_other_out() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let hub = Hub::start().await;
    let link = hub.registry.claim(UID);
    let before = welcomed(&hub, "n1", 3).await;
    let mut crowd = Vec::new();
    for _ in 0..1000 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((Ipv4Addr::new(127, 0, 0, 2), 0).into()).unwrap();
        crowd.push(socket.connect(hub.address).await.unwrap());
    }
    // Connections without room to wait are closed.
    hub.has_refused("too_many_connections", 1000 - 16 * UNKNOWN_CONNECTIONS as u64)
        .await;
    let began = Instant::now();
    let after = welcomed(&hub, "n2", 3).await;
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    before.is_served(&link, 1).await;
    drop((after, crowd));
}

#[tokio::test]
async fn open_streams_do_not_count() {
    let hub = Hub::start().await;
    let mut nodes = Vec::new();
    for node in 0..2 * UNKNOWN_CONNECTIONS {
        nodes.push(welcomed(&hub, &format!("n{node}"), 3).await);
    }
    assert_eq!(hub.registry.connected(), nodes.len());
}

#[tokio::test]
async fn a_connection_has_so_many_streams_and_the_next_one_waits_for_a_place() {
    let hub = Hub::start().await;
    let shared = hub.client().await;
    let open = async |node: &str| {
        let (tx, messages) = mpsc::channel(16);
        let kind = Some(node_message::Kind::Hello(hello(vec![])));
        tx.send(pb::NodeMessage { kind }).await.unwrap();
        let mut request = Request::new(ReceiverStream::new(messages));
        let token = format!("Bearer {}", hub.cluster.token(node));
        request
            .metadata_mut()
            .insert("authorization", token.parse().unwrap());
        let rx = shared.clone().connect(request).await.unwrap().into_inner();
        Node { tx, rx }
    };
    let mut nodes = Vec::new();
    for node in 0..STREAMS {
        nodes.push(open(&format!("n{node}")).await);
    }
    let mut next = std::pin::pin!(open("another"));
    let early = tokio::time::timeout(Duration::from_millis(300), &mut next).await;
    assert!(early.is_err(), "there is a place");
    // Others have connections of their own.
    welcomed(&hub, "elsewhere", 3).await;
    nodes.pop();
    let mut late = tokio::time::timeout(SOON, next).await.unwrap();
    assert!(matches!(late.next().await, hub_message::Kind::Welcome(_)));
}
