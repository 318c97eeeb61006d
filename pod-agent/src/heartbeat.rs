//! The worker's heartbeat: a file that it touches, or a socket that it sends to, to show that it
//! lives.
//!
//! It promises:
//! - Only changes of the file count, not how old its timestamps are: clocks may step.
//! - The worker is judged from its first heartbeat on. Before that, it is awaited for as long as
//!   its start may take.
//! - Time in which the agent itself did not run (a frozen container, a busy machine) does not
//!   count.
//! - A worker that stops its heartbeats is noticed within its timeout and one more second.
//! - What a worker says of its work is passed on once a second at most, and in full when it ends.

mod facts;
mod source;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lockstep_protocol::progress::Progress;

use crate::machine::Heartbeat;
use crate::sys::Interest;

use source::{Source, Stamp};

/// Value of the environment variable `LOCKSTEP_HEARTBEAT` in a container whose worker sends its
/// heartbeats by socket.
pub(crate) const BY_SOCKET: &str = "socket";

/// Bounds of the pause between two checks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));

/// Shortest time between two [news](Pulse::news) of what a worker says.
const NEWS: Duration = Duration::from_secs(1);

/// How a worker gives its heartbeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    /// It touches a file.
    File,
    /// It sends datagrams to a socket.
    Socket,
}

/// The heartbeat of the worker that runs now.
#[derive(Debug)]
pub(crate) struct Pulse {
    source: Option<Source>,
    /// Zero: none is required.
    timeout: Duration,
    seen: Option<Stamp>,
    /// Since the last heartbeat; none: there was none since the worker was started, or since one is
    /// required.
    silent: Option<Duration>,
    /// Set if one was required when the worker was started.
    from_start: bool,
    /// How long it may be awaited; none: without limit.
    ready: Option<Duration>,
    /// How long it has been awaited.
    awaited: Duration,
    looked: Duration,
    /// All that the worker has said of its work, and what of it was passed on.
    said: Progress,
    told: Progress,
    /// When more may be passed on.
    tell_at: Duration,
}

impl Pulse {
    /// Takes the heartbeats of a worker that does not run yet, at `path`, by file or by socket.
    pub(crate) fn new(path: Option<PathBuf>, transport: Transport) -> Self {
        Self {
            source: path.map(match transport {
                Transport::File => Source::file,
                Transport::Socket => Source::socket,
            }),
            timeout: Duration::ZERO,
            seen: None,
            silent: None,
            from_start: false,
            ready: None,
            awaited: Duration::ZERO,
            looked: Duration::ZERO,
            said: Progress::default(),
            told: Progress::default(),
            tell_at: Duration::ZERO,
        }
    }

    /// The file or socket, if heartbeats can be taken.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.source.as_ref().map(Source::path)
    }

    /// A socket to wait for, and to [`take`](Self::take) from when it is ready.
    pub(crate) fn interest(&self) -> Option<Interest> {
        self.source.as_ref().and_then(Source::interest)
    }

    /// Reads the heartbeats that have arrived. They are judged when a check is due.
    pub(crate) fn take(&mut self) {
        if let Some(source) = &mut self.source {
            source.take(&mut self.said);
        }
    }

    /// All that the worker has said in this attempt, if that is due.
    pub(crate) fn news(&mut self, now: Duration) -> Option<Progress> {
        (self.tell_at <= now).then(|| self.all_news(now)).flatten()
    }

    /// All that the worker has said in this attempt, if any of it is new.
    pub(crate) fn all_news(&mut self, now: Duration) -> Option<Progress> {
        if self.said == self.told {
            return None;
        }
        self.told.clone_from(&self.said);
        self.tell_at = now + NEWS;
        Some(self.said.clone())
    }

    /// A worker is about to start. It must give a heartbeat at least every `timeout`, the first one
    /// within `ready` (zero: at any time). Creates the file or socket, for any user.
    ///
    /// # Errors
    /// When it cannot be created. The worker then gets none, and is never judged.
    pub(crate) fn start(&mut self, (timeout, ready): (Duration, Duration), now: Duration) -> io::Result<()> {
        self.timeout = timeout;
        self.silent = None;
        self.from_start = false;
        self.ready = (!ready.is_zero()).then_some(ready);
        self.awaited = Duration::ZERO;
        self.looked = now;
        (self.said, self.told) = Default::default();
        if let Some(source) = &mut self.source {
            if let Err(error) = source.make() {
                self.source = None;
                return Err(error);
            }
            self.seen = source.stamp();
            self.from_start = !timeout.is_zero();
        }
        Ok(())
    }

    /// Changes what is required of the running worker. If it needed no heartbeats before, it is
    /// judged from its next one on. The limit for the first one may be raised or lifted; a lower
    /// one applies from the next start.
    pub(crate) fn ask(&mut self, (timeout, ready): (Duration, Duration), now: Duration) {
        if self.timeout.is_zero() && !timeout.is_zero() {
            self.seen = self.stamp();
            self.silent = None;
            self.from_start = false;
            self.looked = now;
        }
        self.timeout = timeout;
        self.ready = self.ready.filter(|_| !ready.is_zero()).map(|now| now.max(ready));
    }

    /// When the next check is due, on the monotonic clock.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        (!self.timeout.is_zero()).then(|| self.looked + self.pause())
    }

    /// When the next [news](Self::news) are due, on the monotonic clock.
    pub(crate) fn news_due(&self) -> Option<Duration> {
        (self.said != self.told).then_some(self.tell_at)
    }

    fn stamp(&mut self) -> Option<Stamp> {
        self.take();
        self.source.as_ref().and_then(Source::stamp)
    }

    fn pause(&self) -> Duration {
        (self.timeout / 4).clamp(PAUSE.0, PAUSE.1)
    }

    /// Checks for a heartbeat.
    pub(crate) fn check(&mut self, now: Duration) -> Heartbeat {
        let stamp = self.stamp();
        self.judge(stamp, now)
    }

    fn judge(&mut self, stamp: Option<Stamp>, now: Duration) -> Heartbeat {
        // A late check means that the agent was held up, and maybe the worker with it.
        let passed = now.saturating_sub(self.looked).min(self.pause() * 2);
        self.looked = now;
        // A file that is gone is no heartbeat; one that is there again is.
        if stamp.is_some() && stamp != self.seen {
            self.seen = stamp;
            self.silent = Some(Duration::ZERO);
        } else if let Some(silent) = &mut self.silent {
            *silent += passed;
        } else {
            self.awaited += passed;
        }
        match self.silent {
            Some(silent) if silent > self.timeout => Heartbeat::Missed,
            None if self.from_start && self.ready.is_some_and(|ready| self.awaited >= ready) => {
                Heartbeat::Overdue
            }
            None if self.from_start => Heartbeat::Awaited,
            Some(_) | None => Heartbeat::Well,
        }
    }
}

#[cfg(test)]
mod tests;
