//! Clients that speak plain text where TLS is spoken.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// First byte of a TLS connection: a handshake record.
pub(crate) const HANDSHAKE_RECORD: u8 = 0x16;

/// What they are told, in Go's words.
const TLS_ONLY: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// How long they may take to hear that, and bytes of theirs that are read meanwhile.
const FAREWELL: Duration = Duration::from_secs(1);
const LEFT: u64 = 64 * 1024;

/// Says in plain text that it is not spoken here. Whether that arrives is no concern of ours.
pub(crate) async fn turn_down(mut stream: TcpStream) {
    let said = async {
        stream.write_all(TLS_ONLY).await?;
        stream.shutdown().await?;
        // What is left unread would have the kernel take the answer back.
        let mut rest = stream.take(LEFT);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _: Result<io::Result<u64>, _> = tokio::time::timeout(FAREWELL, said).await;
}
