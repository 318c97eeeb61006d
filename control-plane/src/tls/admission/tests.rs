use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::super::door::Door;
use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

/// A visitor, and where those are counted who are turned away.
fn visitor() -> (Visitor, Arc<Mutex<Vec<&'static str>>>) {
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&reasons);
    let door = Door::new(1, move |_, why: &TurnedAway| {
        told.lock().unwrap().push(why.reason());
    });
    (door.knock([10, 0, 0, 1].into()).unwrap(), reasons)
}

#[tokio::test(start_paused = true)]
async fn who_does_not_make_himself_known_is_cut_off() {
    let (mut client, server) = duplex(64);
    let (visitor, turned_away) = visitor();
    let mut stranger = Stranger::new(server, visitor, PATIENCE);
    // It may talk for as long as it likes.
    client.write_all(b"x").await.unwrap();
    let mut byte = [0];
    stranger.read_exact(&mut byte).await.unwrap();
    let began = tokio::time::Instant::now();
    let error = stranger.read(&mut byte).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed().as_secs(), PATIENCE.as_secs());
    // It stays away, and is counted once.
    stranger.connect_info().admit();
    assert!(stranger.read(&mut byte).await.is_err());
    assert_eq!(*turned_away.lock().unwrap(), ["unknown_client"]);
}

#[tokio::test(start_paused = true)]
async fn who_is_admitted_is_kept() {
    let (mut client, server) = duplex(64);
    let (visitor, turned_away) = visitor();
    let mut stranger = Stranger::new(server, visitor, PATIENCE);
    stranger.connect_info().admit();
    let sent = async {
        sleep(100 * PATIENCE).await;
        client.write_all(b"x").await.unwrap();
    };
    let mut byte = [0];
    let (read, ()) = tokio::join!(stranger.read_exact(&mut byte), sent);
    read.unwrap();
    assert_eq!(&byte, b"x");
    assert!(turned_away.lock().unwrap().is_empty());
}
