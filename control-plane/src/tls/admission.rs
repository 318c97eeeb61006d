//! Connections on which nobody has made himself known are not kept: they would hold a socket each, at no cost to who opens them.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::door::{TurnedAway, Visitor};
use super::serving::Guest;

#[cfg(test)]
mod tests;

/// A connection that ends by itself unless it is admitted in time.
pub(crate) struct Stranger<S> {
    stream: S,
    visit: Visit,
    /// Nothing once it is admitted.
    patience: Option<Pin<Box<Sleep>>>,
}

/// What requests know of the connection that they come on.
#[derive(Clone)]
pub(crate) struct Visit {
    peer: IpAddr,
    presence: Arc<Mutex<Presence>>,
}

/// Whether it is known who is there.
enum Presence {
    Unknown(Visitor),
    Admitted,
    TurnedAway,
}

impl Visit {
    fn of(visitor: Visitor) -> Self {
        Self {
            peer: visitor.peer(),
            presence: Arc::new(Mutex::new(Presence::Unknown(visitor))),
        }
    }

    /// Somebody who may be here has made himself known: the connection is kept, and counts as nobody's any more.
    pub(crate) fn admit(&self) {
        let mut presence = self.presence();
        if matches!(*presence, Presence::Unknown(_)) {
            *presence = Presence::Admitted;
        }
    }

    /// The address of the peer, without its port.
    pub(crate) fn address(&self) -> String {
        self.peer.to_string()
    }

    fn presence(&self) -> MutexGuard<'_, Presence> {
        self.presence.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<S> Stranger<S> {
    fn new(stream: S, visitor: Visitor, patience: Duration) -> Self {
        Self {
            stream,
            visit: Visit::of(visitor),
            patience: Some(Box::pin(sleep(patience))),
        }
    }

    /// Whether its time is over. Wakes the task when it is.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(patience) = &mut self.patience else {
            return false;
        };
        let mut presence = self.visit.presence();
        match &*presence {
            Presence::Unknown(_) if patience.as_mut().poll(cx).is_pending() => false,
            Presence::Unknown(visitor) => {
                visitor.turn_away(&TurnedAway::Unknown);
                *presence = Presence::TurnedAway;
                true
            }
            Presence::TurnedAway => true,
            Presence::Admitted => {
                drop(presence);
                self.patience = None;
                false
            }
        }
    }
}

impl Stranger<TlsStream<TcpStream>> {
    /// Gives a connection this long to be admitted.
    pub(crate) fn of(guest: Guest, patience: Duration) -> Self {
        Self::new(guest.stream, guest.visitor, patience)
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
