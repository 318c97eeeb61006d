//! Closes connections without an authenticated caller: each holds a socket, at no cost to the
//! client.
//!
//! ```text
//! unknown ──admit──> admitted, with one stream or more ──the last one ends──> left ──admit──> admitted ...
//!    │ deadline, if any                                                      │ LINGER
//!    └──────────────────────────── cut off <─────────────────────────────────┘
//! ```
//!
//! Promises:
//! - A connection without an admitted caller may send a limited amount. Each authenticated call
//!   renews that limit.
//! - A connection counts for its address except while it is admitted, and for a second after that
//!   if its address has no slot left.
//! - A client with one stream at a time, such as a node, keeps one connection.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Instant, Sleep, sleep_until};
use tokio_rustls::server::TlsStream;
use tonic::transport::server::Connected;

use super::allowance::{Allowance, Client};
use super::connection_limit::{ConnectionLimit, Rejected, UnknownConnection};
use super::frames::{Answers, Preface};
use super::serving::AcceptedConnection;
use super::slots::InUse;

#[cfg(test)]
mod tests;

/// How long a connection stays open after its last stream, so that the stream's last messages
/// arrive.
const LINGER: Duration = Duration::from_secs(5);
/// The same if its address has no slot left.
const LINGER_UNCOUNTED: Duration = Duration::from_secs(1);
/// For connections without a deadline: how long the client may take to begin HTTP/2. From then on
/// keep-alives detect dead connections.
const PREFACE_WITHIN: Duration = Duration::from_secs(10);

/// A connection that closes unless a caller is admitted in time.
pub(crate) struct UnauthenticatedStream<S> {
    stream: S,
    handle: ConnectionHandle,
    /// The timer of its deadline, if it has one.
    timer: Option<Pin<Box<Sleep>>>,
    /// True if it may stay as long as it speaks HTTP/2.
    unlimited: bool,
    preface: Preface,
    allowance: Allowance,
    answers: Answers,
}

/// The handle through which requests affect their connection.
#[derive(Clone)]
pub(crate) struct ConnectionHandle {
    limit: Arc<ConnectionLimit>,
    peer: IpAddr,
    state: Arc<Mutex<State>>,
}

struct State {
    presence: Presence,
    /// Until when it may stay without a stream.
    until: Option<Instant>,
    /// True if a caller authenticated since the last check.
    has_come: bool,
    /// The task that reads from the connection.
    task: Option<Waker>,
}

/// The state of a connection's callers.
enum Presence {
    Unknown(UnknownConnection),
    /// On this many streams.
    Admitted(usize),
    /// The last stream ended. The connection counts while this is held.
    Left {
        _unknown: Option<UnknownConnection>,
    },
    Rejected,
}

impl ConnectionHandle {
    fn of(unknown: UnknownConnection, admit_within: Option<Duration>) -> Self {
        Self {
            limit: unknown.limit(),
            peer: unknown.peer(),
            state: Arc::new(Mutex::new(State {
                presence: Presence::Unknown(unknown),
                until: Some(Instant::now() + admit_within.unwrap_or(PREFACE_WITHIN)),
                has_come: false,
                task: None,
            })),
        }
    }

    /// Admits an authenticated caller. Until the returned value is dropped, the connection stays
    /// open and does not count for its address.
    pub(crate) fn admit(&self) -> AdmittedStream {
        let mut state = self.state();
        state.has_come = true;
        match &mut state.presence {
            Presence::Unknown(_) | Presence::Left { .. } => state.presence = Presence::Admitted(1),
            Presence::Admitted(streams) => *streams = streams.saturating_add(1),
            Presence::Rejected => {}
        }
        drop(state);
        AdmittedStream(self.clone())
    }

    /// The peer's address, as limits distinguish clients.
    pub(crate) fn address(&self) -> String {
        ConnectionLimit::name(self.peer)
    }

    /// Records one of a limited number of streams of an authenticated caller. Until the returned
    /// value is dropped, the connection is not closed to make room. It counts for its address as
    /// before.
    pub(crate) fn stream(&self) -> OpenStream {
        match &self.state().presence {
            Presence::Unknown(unknown) => OpenStream(unknown.in_use()),
            _ => OpenStream(None),
        }
    }

    /// Records a caller that authenticated with a call and has no stream.
    pub(crate) fn know(&self) {
        self.state().has_come = true;
    }

    fn leave(&self) {
        let mut state = self.state();
        match &mut state.presence {
            Presence::Admitted(1) => {
                let back = self.limit.readmit(self.peer);
                // Without a slot the connection closes soon, but not before the last message is
                // delivered.
                let linger = if back.is_some() { LINGER } else { LINGER_UNCOUNTED };
                state.presence = Presence::Left { _unknown: back };
                state.until = Some(Instant::now() + linger);
            }
            Presence::Admitted(streams) => *streams = streams.saturating_sub(1),
            _ => {}
        }
        let task = state.task.take();
        drop(state);
        if let Some(task) = task {
            task.wake();
        }
    }

    /// Returns if a caller is admitted, and if one authenticated since the last check.
    fn standing(&self) -> (bool, bool) {
        let mut state = self.state();
        let is_admitted = matches!(state.presence, Presence::Admitted(_));
        (is_admitted, std::mem::take(&mut state.has_come))
    }

    fn turn_away(&self, why: &Rejected) {
        self.state().presence = Presence::Rejected;
        self.limit.turn_away(self.peer, why);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A stream that protects the slot of its connection until it is dropped.
pub(crate) struct OpenStream(#[expect(dead_code, reason = "held for its drop")] Option<InUse>);

/// The stream of an admitted caller; dropping it ends the admission.
pub(crate) struct AdmittedStream(ConnectionHandle);

impl Drop for AdmittedStream {
    fn drop(&mut self) {
        self.0.leave();
    }
}

impl<S> UnauthenticatedStream<S> {
    fn new(stream: S, unknown: UnknownConnection, admit_within: Option<Duration>) -> Self {
        Self {
            stream,
            handle: ConnectionHandle::of(unknown, admit_within),
            timer: None,
            unlimited: admit_within.is_none(),
            preface: Preface::default(),
            allowance: if admit_within.is_some() {
                Allowance::of_daemon()
            } else {
                Allowance::of_caller()
            },
            answers: Answers::default(),
        }
    }

    /// True if the deadline passed. Wakes the task when it passes.
    fn poll_overdue(&mut self, cx: &mut Context<'_>) -> bool {
        let state = &mut *self.handle.state();
        match &state.task {
            Some(task) if task.will_wake(cx.waker()) => {}
            _ => state.task = Some(cx.waker().clone()),
        }
        match &state.presence {
            Presence::Rejected => return true,
            Presence::Admitted(_) => {
                self.timer = None;
                return false;
            }
            Presence::Unknown(unknown) if unknown.poll_crowded_out(cx).is_ready() => {
                unknown.turn_away(&Rejected::CrowdedOut);
                state.presence = Presence::Rejected;
                return true;
            }
            Presence::Unknown(_) | Presence::Left { .. } => {}
        }
        let Some(until) = state.until else {
            return false;
        };
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep_until(until)));
        if timer.deadline() != until {
            timer.as_mut().reset(until);
        }
        if timer.as_mut().poll(cx).is_pending() {
            return false;
        }
        if let Presence::Unknown(unknown) = &state.presence {
            unknown.turn_away(&Rejected::Unknown);
        }
        state.presence = Presence::Rejected;
        true
    }

    fn note(&self, why: Option<Rejected>) {
        if let Some(why) = why {
            self.handle.limit.turn_away(self.handle.peer, &why);
        }
    }
}

impl UnauthenticatedStream<TlsStream<TcpStream>> {
    /// Wraps a connection that must have an admitted caller within this time; without a time there
    /// is no deadline.
    pub(crate) fn of(accepted: AcceptedConnection, admit_within: Option<Duration>) -> Self {
        Self::new(accepted.stream, accepted.unknown, admit_within)
    }
}

impl<S> Connected for UnauthenticatedStream<S> {
    type ConnectInfo = ConnectionHandle;

    fn connect_info(&self) -> ConnectionHandle {
        self.handle.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for UnauthenticatedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.poll_overdue(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if read.is_ready() {
            let bytes = buf.filled().get(before..).unwrap_or_default();
            let (is_admitted, has_come) = self.handle.standing();
            if has_come {
                self.allowance.renew();
            }
            let client = match is_admitted {
                true => Client::Admitted,
                false => Client::Unknown,
            };
            if !self.allowance.read(bytes, client) {
                buf.set_filled(before);
                self.handle.turn_away(&Rejected::Flood);
                return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
            }
            let why = self.preface.read(bytes);
            if self.unlimited && self.preface.is_whole() {
                self.handle.state().until = None;
            }
            self.note(why);
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for UnauthenticatedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        // A client that does not read may block the task from reading what it sends.
        if self.poll_overdue(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(written)) = written {
            self.allowance.wrote(written);
            let why = self.answers.wrote(buf.get(..written).unwrap_or_default());
            self.note(why);
        }
        written
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.poll_overdue(cx) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        if let Poll::Ready(Ok(mut left)) = written {
            self.allowance.wrote(left);
            for buf in bufs {
                let part = left.min(buf.len());
                let why = self.answers.wrote(buf.get(..part).unwrap_or_default());
                self.note(why);
                left -= part;
            }
        }
        written
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
