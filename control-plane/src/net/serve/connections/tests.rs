use axum::Router;
use axum::routing::get;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::*;
use crate::net::serve::http;

/// The least number with which the tests can tell which connection is closed.
const MOST: usize = 8;

struct Server {
    address: SocketAddr,
    shutdown: CancellationToken,
    task: JoinHandle<()>,
    /// Notified when a request for `/slow` has arrived.
    arrived: Arc<Notify>,
    /// Lets that request be answered.
    answer: Arc<Notify>,
}

async fn server() -> Server {
    let (arrived, answer) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let notify = (Arc::clone(&arrived), Arc::clone(&answer));
    let slow = async move || {
        notify.0.notify_one();
        notify.1.notified().await;
        "slow"
    };
    let router = Router::new().route("/", get("fast")).route("/slow", get(slow));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let end = shutdown.clone();
    let task = tokio::spawn(async move {
        let connections = Connections {
            to: "a test",
            most: MOST,
            grace: Duration::from_secs(5),
        };
        let serve = |stream, _, activity: Arc<Activity>| {
            let (router, end) = (router.clone(), end.clone());
            async move { http(stream, router, &activity, end).await }
        };
        connections.accept(listener, serve, &end).await;
    });
    Server {
        address,
        shutdown,
        task,
        arrived,
        answer,
    }
}

impl Server {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    async fn silent(&self, number: usize) -> Vec<TcpStream> {
        let mut clients = Vec::new();
        for _ in 0..number {
            clients.push(self.connect().await);
        }
        clients
    }

    async fn end(self) {
        self.shutdown.cancel();
        self.task.await.unwrap();
    }
}

async fn send(client: &mut TcpStream, path: &str) {
    let request = format!("GET {path} HTTP/1.1\r\nHost: test\r\n\r\n");
    client.write_all(request.as_bytes()).await.unwrap();
}

/// The next bytes; empty if the connection is closed.
async fn receive(client: &mut TcpStream) -> String {
    let mut buffer = [0; 1024];
    let read = client.read(&mut buffer).await.unwrap_or(0);
    String::from_utf8_lossy(&buffer[..read]).into_owned()
}

#[tokio::test]
async fn too_many_silent_clients_block_no_other_client() {
    let server = server().await;
    let mut silent = server.silent(10 * MOST).await;
    let mut client = server.connect().await;
    send(&mut client, "/").await;
    assert!(receive(&mut client).await.ends_with("fast"));
    // The oldest ones are closed.
    for gone in &mut silent[..9 * MOST] {
        assert_eq!(receive(gone).await, "");
    }
    server.end().await;
}

#[tokio::test]
async fn busy_connections_are_not_closed_and_recent_ones_are_closed_last() {
    let server = server().await;
    let mut busy = server.connect().await;
    send(&mut busy, "/slow").await;
    server.arrived.notified().await;
    let mut before = server.silent(2).await;
    let mut kept = server.connect().await;
    send(&mut kept, "/").await;
    assert!(receive(&mut kept).await.ends_with("fast"));
    let after = server.silent(MOST - 2).await;
    for gone in &mut before {
        assert_eq!(receive(gone).await, "");
    }
    send(&mut kept, "/").await;
    assert!(receive(&mut kept).await.ends_with("fast"));
    server.answer.notify_one();
    assert!(receive(&mut busy).await.ends_with("slow"));
    drop(after);
    server.end().await;
}

#[tokio::test]
async fn large_networks_close_no_connection_of_a_small_one() {
    let server = server().await;
    let from = async |network: u8| {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from(([127, 0, 0, network], 0))).unwrap();
        socket.connect(server.address).await.unwrap()
    };
    let asked = async |network: u8| {
        let mut client = from(network).await;
        send(&mut client, "/").await;
        assert!(receive(&mut client).await.ends_with("fast"));
        client
    };
    let mut kept = [asked(1).await, asked(1).await];
    // Connections without a request replace each other, even young ones.
    let mut silent = Vec::new();
    for client in 0..4 * MOST {
        silent.push(from(u8::try_from(2 + client % 4).unwrap()).await);
    }
    // So do those with requests that wait for ever, such as one whose body never comes.
    let mut waiting = Vec::new();
    for client in 0..4 * MOST {
        let mut client = from(u8::try_from(2 + client % 4).unwrap()).await;
        send(&mut client, "/slow").await;
        waiting.push(client);
    }
    // Answered connections make room by network.
    let mut others = Vec::new();
    for _ in 0..4 * MOST {
        others.push(asked(2).await);
    }
    for kept in &mut kept {
        send(kept, "/").await;
        assert!(receive(kept).await.ends_with("fast"));
    }
    drop((silent, waiting, others));
    server.end().await;
}

#[tokio::test]
async fn new_connections_are_not_closed_before_idle_ones() {
    let server = server().await;
    let mut idle = Vec::new();
    for _ in 0..MOST - 1 {
        let mut client = server.connect().await;
        send(&mut client, "/").await;
        assert!(receive(&mut client).await.ends_with("fast"));
        idle.push(client);
    }
    let mut new = server.connect().await;
    let others = server.silent(1).await;
    send(&mut new, "/").await;
    assert!(receive(&mut new).await.ends_with("fast"));
    drop((idle, others));
    server.end().await;
}

#[tokio::test]
async fn a_client_must_ask_soon_and_may_be_quiet_afterwards() {
    let server = server().await;
    let mut asked = server.connect().await;
    send(&mut asked, "/").await;
    assert!(receive(&mut asked).await.ends_with("fast"));
    tokio::time::pause();
    let mut half = server.connect().await;
    half.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
    let begin = tokio::time::Instant::now();
    assert_eq!(receive(&mut half).await, "");
    assert!(begin.elapsed() >= FIRST_REQUEST && begin.elapsed() < 2 * FIRST_REQUEST);
    tokio::time::advance(10 * FIRST_REQUEST).await;
    tokio::time::resume();
    send(&mut asked, "/").await;
    assert!(receive(&mut asked).await.ends_with("fast"));
    server.end().await;
}
