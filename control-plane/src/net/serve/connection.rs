//! One connection: HTTP/1.1 for every endpoint, and for that of the metrics TLS or plain text, told
//! apart by its first byte.

use std::convert::Infallible;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::activity::Activity;
use super::certificate::Certificate;

/// How long a connection may be idle after a request: longer than the API server keeps one to a
/// webhook (90 s), so that it is not closed in its face.
const IDLE: Duration = Duration::from_secs(120);

/// What is served to whom.
pub(super) struct Server {
    pub(super) certificate: Certificate,
    /// In plain text, to those who are trusted.
    pub(super) plain: Router,
    /// Over TLS.
    pub(super) secure: Router,
}

impl Server {
    /// Serves one connection until its end, or until it has answered what is under way at the
    /// shutdown.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        trusted: bool,
        activity: Arc<Activity>,
        shutdown: CancellationToken,
    ) {
        // Answers are awaited: they must not wait for more to send.
        let _ = stream.set_nodelay(true);
        let mut first = [0];
        match shutdown.run_until_cancelled(stream.peek(&mut first)).await {
            Some(Ok(1)) => {}
            _ => return,
        }
        if first == [HANDSHAKE_RECORD] {
            let acceptor = match self.certificate.config().await {
                Ok(config) => TlsAcceptor::from(config),
                Err(error) => {
                    tracing::warn!(error = format!("{error:#}"), "metrics endpoint: no certificate");
                    return;
                }
            };
            match acceptor.accept(stream).await {
                Ok(stream) => http(stream, self.secure.clone(), &activity, shutdown).await,
                Err(error) => tracing::debug!(%error, "no TLS with a reader of the metrics"),
            }
        } else if trusted {
            http(stream, self.plain.clone(), &activity, shutdown).await;
        } else {
            turn_down(stream).await;
        }
    }
}

/// Speaks HTTP/1.1 until the end of the connection, or until what is under way at the shutdown has
/// been answered.
pub(crate) async fn http(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    router: Router,
    activity: &Activity,
    shutdown: CancellationToken,
) {
    let router = TowerToHyperService::new(router);
    let service = service_fn(|request: Request<Incoming>| async {
        let mut under_way = activity.request();
        let answer = router.call(request).await?;
        under_way.answered(answer.status());
        Ok::<_, Infallible>(answer)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = shutdown.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke");
    }
}

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
