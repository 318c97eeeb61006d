use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use tokio::time::sleep;

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// A connection, and the counter of rejected ones.
fn unknown() -> (UnknownConnection, Arc<Mutex<Vec<&'static str>>>) {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&reasons);
    let limit = ConnectionLimit::new(1, move |_, why: &Rejected| {
        told.lock().unwrap().push(why.reason());
    });
    (limit.accept([10, 0, 0, 1].into()).unwrap(), reasons)
}

#[tokio::test(start_paused = true)]
async fn an_unauthenticated_client_is_cut_off() {
    let (mut client, server) = duplex(64);
    let (unknown, turned_away) = unknown();
    let mut stranger = UnauthenticatedStream::new(server, unknown, Some(PATIENCE));
    // It may talk without a time limit.
    client.write_all(b"P").await.unwrap();
    let mut byte = [0];
    stranger.read_exact(&mut byte).await.unwrap();
    let began = Instant::now();
    let error = stranger.read(&mut byte).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed().as_secs(), PATIENCE.as_secs());
    // The connection stays closed, and is counted once.
    drop(stranger.connect_info().admit());
    assert!(stranger.read(&mut byte).await.is_err());
    assert_eq!(*turned_away.lock().unwrap(), ["unknown_client"]);
}

#[tokio::test(start_paused = true)]
async fn a_flood_from_an_unauthenticated_client_ends_the_connection() {
    let (mut client, server) = duplex(1 << 20);
    let (unknown, turned_away) = unknown();
    let mut stranger = UnauthenticatedStream::new(server, unknown, Some(PATIENCE));
    let empty_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0].repeat(2_000);
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    client.write_all(&empty_settings).await.unwrap();
    let mut read = Vec::new();
    let error = stranger.read_to_end(&mut read).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::ConnectionAborted);
    assert!(stranger.read(&mut [0]).await.is_err());
    assert_eq!(*turned_away.lock().unwrap(), ["flood"]);
}

#[tokio::test(start_paused = true)]
async fn an_admitted_connection_is_kept() {
    let (mut client, server) = duplex(64);
    let (unknown, turned_away) = unknown();
    let mut stranger = UnauthenticatedStream::new(server, unknown, Some(PATIENCE));
    let stay = stranger.connect_info().admit();
    let sent = async {
        sleep(100 * PATIENCE).await;
        client.write_all(b"P").await.unwrap();
    };
    let mut byte = [0];
    let (read, ()) = tokio::join!(stranger.read_exact(&mut byte), sent);
    read.unwrap();
    assert_eq!(&byte, b"P");
    drop(stay);
    assert!(turned_away.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_streams_closes_soon_and_is_not_reported() {
    let (_client, server) = duplex(64);
    let (unknown, turned_away) = unknown();
    let mut stranger = UnauthenticatedStream::new(server, unknown, Some(PATIENCE));
    let visit = stranger.connect_info();
    let (first, second) = (visit.admit(), visit.admit());
    let began = Instant::now();
    let leave = async {
        sleep(10 * PATIENCE).await;
        drop(first);
        sleep(PATIENCE).await;
        drop(second);
        // Another stream comes in time, and stays for a while.
        sleep(LINGER / 2).await;
        let third = visit.admit();
        sleep(PATIENCE).await;
        drop(third);
    };
    let mut byte = [0];
    let (read, ()) = tokio::join!(stranger.read(&mut byte), leave);
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), 12 * PATIENCE + LINGER / 2 + LINGER);
    assert!(turned_away.lock().unwrap().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_a_stream_counts_for_its_address() {
    let (unknown, turned_away) = unknown();
    let limit = unknown.limit();
    let accept = |most: usize| -> Vec<_> {
        (0..most)
            .filter_map(|_| limit.accept([10, 0, 0, 1].into()))
            .collect()
    };
    let (_client, server) = duplex(64);
    let mut stranger = UnauthenticatedStream::new(server, unknown, Some(PATIENCE));
    let stay = stranger.connect_info().admit();
    // The queue is full; then a connection that comes back closes sooner.
    let waiting = accept(16);
    assert_eq!(waiting.len(), 16);
    drop(waiting);
    drop(stay);
    assert_eq!(accept(16).len(), 15);
    let stay = stranger.connect_info().admit();
    let waiting = accept(16);
    assert_eq!(waiting.len(), 16);
    drop(stay);
    let began = Instant::now();
    let read = stranger.read(&mut [0]).await;
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), LINGER_UNCOUNTED);
    assert_eq!(*turned_away.lock().unwrap(), ["too_many_connections"]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_deadline_counts_until_it_ends() {
    let (mut unknown, turned_away) = unknown();
    let limit = unknown.limit();
    assert!(unknown.enter().await);
    let (mut client, server) = duplex(64);
    let mut stranger = UnauthenticatedStream::new(server, unknown, None);
    client
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    stranger.read_exact(&mut [0; 24]).await.unwrap();
    let read = tokio::time::timeout(1000 * PATIENCE, stranger.read(&mut [0])).await;
    assert!(read.is_err(), "it is still open: {read:?}");
    let mut next = limit.accept([10, 0, 0, 1].into()).unwrap();
    assert!(!next.enter().await);
    drop(stranger);
    assert!(next.enter().await);
    assert_eq!(*turned_away.lock().unwrap(), ["too_many_connections"]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_without_deadline_must_begin_http2() {
    let (_client, server) = duplex(64);
    let (unknown, turned_away) = unknown();
    let mut stranger = UnauthenticatedStream::new(server, unknown, None);
    let began = Instant::now();
    let error = stranger.read(&mut [0]).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed(), PREFACE_WITHIN);
    assert_eq!(*turned_away.lock().unwrap(), ["unknown_client"]);
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_slot_is_needed_is_closed_unless_admitted() {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&reasons);
    // Memory for two slots.
    let limit = ConnectionLimit::with_memory(2 * 16 * (32 << 10), 2, move |_, why: &Rejected| {
        told.lock().unwrap().push(why.reason());
    });
    let enter = async |address: u8| {
        let mut unknown = limit.accept([10, 0, 0, address].into()).unwrap();
        assert!(unknown.enter().await);
        unknown
    };
    let (_clients, server) = duplex(64);
    let mut idle = UnauthenticatedStream::new(server, enter(1).await, None);
    let (mut client, server) = duplex(64);
    let mut admitted = UnauthenticatedStream::new(server, enter(1).await, None);
    let stay = admitted.connect_info().admit();
    let _third = enter(1).await;
    let other = async {
        sleep(Duration::from_secs(1)).await;
        enter(2).await
    };
    let mut byte = [0];
    let (read, _other) = tokio::join!(idle.read(&mut byte), other);
    assert!(read.is_err());
    client.write_all(b"P").await.unwrap();
    admitted.read_exact(&mut [0]).await.unwrap();
    drop(stay);
    assert_eq!(*reasons.lock().unwrap(), ["crowded_out"]);
}
