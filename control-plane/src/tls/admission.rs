//! Connections on which nobody has made himself known are not kept: they would hold a socket each, at no cost to who opens them.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

#[cfg(test)]
mod tests;

/// A connection that ends by itself unless it is admitted in time.
#[derive(Debug)]
pub(crate) struct Stranger<S> {
    stream: S,
    visit: Visit,
    /// Nothing once it is admitted.
    patience: Option<Pin<Box<Sleep>>>,
}

/// What requests know of the connection that they come on.
#[derive(Debug, Clone)]
pub(crate) struct Visit {
    peer: Option<SocketAddr>,
    admitted: Arc<AtomicBool>,
}

impl Visit {
    /// Somebody who may be here has made himself known: the connection is kept.
    pub(crate) fn admit(&self) {
        self.admitted.store(true, Ordering::Relaxed);
    }

    /// The address of the peer, without its port.
    pub(crate) fn address(&self) -> String {
        self.peer.map(|peer| peer.ip().to_string()).unwrap_or_default()
    }
}

impl<S> Stranger<S> {
    fn new(stream: S, peer: Option<SocketAddr>, patience: Duration) -> Self {
        let admitted = Arc::default();
        Self {
            stream,
            visit: Visit { peer, admitted },
            patience: Some(Box::pin(sleep(patience))),
        }
    }

    /// Whether its time is over. Wakes the task when it is.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(patience) = &mut self.patience else {
            return false;
        };
        if self.visit.admitted.load(Ordering::Relaxed) {
            self.patience = None;
            return false;
        }
        patience.as_mut().poll(cx).is_ready()
    }
}

impl Stranger<TlsStream<TcpStream>> {
    /// Gives a connection this long to be admitted.
    pub(crate) fn of(stream: TlsStream<TcpStream>, patience: Duration) -> Self {
        let peer = stream.get_ref().0.peer_addr().ok();
        Self::new(stream, peer, patience)
    }
}

impl<S> Connected for Stranger<S> {
    type ConnectInfo = Visit;

    fn connect_info(&self) -> Visit {
        self.visit.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Stranger<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.poll_overdue(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stranger<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
