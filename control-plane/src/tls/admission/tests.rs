use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

use super::*;

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(start_paused = true)]
async fn who_does_not_make_himself_known_is_cut_off() {
    let (mut client, server) = duplex(64);
    let mut stranger = Stranger::new(server, None, PATIENCE);
    // It may talk for as long as it likes.
    client.write_all(b"x").await.unwrap();
    let mut byte = [0];
    stranger.read_exact(&mut byte).await.unwrap();
    let began = tokio::time::Instant::now();
    let error = stranger.read(&mut byte).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    assert_eq!(began.elapsed().as_secs(), PATIENCE.as_secs());
}

#[tokio::test(start_paused = true)]
async fn who_is_admitted_is_kept() {
    let (mut client, server) = duplex(64);
    let mut stranger = Stranger::new(server, None, PATIENCE);
    stranger.connect_info().admit();
    let sent = async {
        sleep(100 * PATIENCE).await;
        client.write_all(b"x").await.unwrap();
    };
    let mut byte = [0];
    let (read, ()) = tokio::join!(stranger.read_exact(&mut byte), sent);
    read.unwrap();
    assert_eq!(&byte, b"x");
}
