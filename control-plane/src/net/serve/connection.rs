//! One HTTP/1.1 connection. The metrics endpoint accepts TLS and plain text and tells them apart by
//! the first byte.

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

/// How long a connection may be idle after a request. This exceeds the time that the API server
/// keeps a connection to a webhook (90 s), so the server does not close it first.
const IDLE: Duration = Duration::from_secs(120);

/// The router for each kind of client.
pub(super) struct Server {
    pub(super) certificate: Certificate,
    /// Plain text, for trusted clients.
    pub(super) plain: Router,
    /// Over TLS.
    pub(super) secure: Router,
}

impl Server {
    /// Serves one connection until it ends; after a shutdown, until the current request is
    /// answered.
    pub(super) async fn serve(
        self: Arc<Self>,
        stream: TcpStream,
        trusted: bool,
        activity: Arc<Activity>,
        shutdown: CancellationToken,
    ) {
        // Clients wait for answers, so small packets must not be delayed.
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
                Err(error) => tracing::debug!(%error, "metrics endpoint: TLS handshake failed"),
            }
        } else if trusted {
            http(stream, self.plain.clone(), &activity, shutdown).await;
        } else {
            turn_down(stream).await;
        }
    }
}

/// Speaks HTTP/1.1 until the connection ends; after a shutdown, until the current request is
/// answered.
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
        tracing::debug!(%error, "connection failed");
    }
}

/// The first byte of a TLS connection: a handshake record.
pub(crate) const HANDSHAKE_RECORD: u8 = 0x16;

/// The answer to plain text, as Go words it.
const TLS_ONLY: &[u8] =
    b"HTTP/1.0 400 Bad Request\r\nConnection: close\r\n\r\nClient sent an HTTP request to an HTTPS server.\n";
/// How long the client may take to read the answer, and how many bytes are read from it meanwhile.
const FAREWELL: Duration = Duration::from_secs(1);
const LEFT: u64 = 64 * 1024;

/// Answers in plain text that the port requires TLS. It does not matter if that arrives.
pub(crate) async fn turn_down(mut stream: TcpStream) {
    let answered = async {
        stream.write_all(TLS_ONLY).await?;
        stream.shutdown().await?;
        // Unread bytes would make the kernel discard the answer.
        let mut rest = stream.take(LEFT);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    let _: Result<io::Result<u64>, _> = tokio::time::timeout(FAREWELL, answered).await;
}
