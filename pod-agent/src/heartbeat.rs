//! The worker's heartbeat: a file that it touches to show that it lives.
//!
//! It promises:
//! - Only a change of the file counts, never the time that the file bears: clocks may step.
//! - The worker is judged from its first heartbeat on. Before that it is awaited, for as long as its start may take.
//! - Time in which the agent itself did not run (a frozen container, a busy machine) is held against nobody.
//! - A worker that stops to give heartbeats is noticed within its time and a second more.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::target::Heartbeat;

/// Bounds of the pause between two looks.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(400));

/// What changes when a file is touched, written or replaced.
type Stamp = (u64, i64, i64, i64, i64, u64);

/// The heartbeat of the worker that runs now.
#[derive(Debug)]
pub(crate) struct Pulse {
    file: Option<PathBuf>,
    /// Zero: none is asked for.
    timeout: Duration,
    seen: Option<Stamp>,
    /// Since the last heartbeat; none: there was none since the worker was started, or since one is asked for.
    silent: Option<Duration>,
    /// One was asked for when the worker was started.
    from_start: bool,
    /// How long it may be awaited; none: as long as it takes.
    ready: Option<Duration>,
    /// How long it has been awaited.
    awaited: Duration,
    looked: Duration,
}

impl Pulse {
    /// No worker runs yet.
    pub(crate) fn new(file: Option<PathBuf>) -> Self {
        Self {
            file,
            timeout: Duration::ZERO,
            seen: None,
            silent: None,
            from_start: false,
            ready: None,
            awaited: Duration::ZERO,
            looked: Duration::ZERO,
        }
    }

    /// The file, where heartbeats can be taken.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// A worker is about to be started, of which a heartbeat at least every `timeout` is asked, the first one within `ready` (zero: whenever).
    /// Makes the file, for any user to touch.
    ///
    /// # Errors
    /// Where there can be no file. The worker is then told of none, and never judged.
    pub(crate) fn start(&mut self, (timeout, ready): (Duration, Duration), now: Duration) -> io::Result<()> {
        self.timeout = timeout;
        self.silent = None;
        self.from_start = false;
        self.ready = (!ready.is_zero()).then_some(ready);
        self.awaited = Duration::ZERO;
        self.looked = now;
        if let Some(file) = &self.file {
            match make(file).and_then(|()| stamp(file)) {
                Ok(stamp) => {
                    self.seen = stamp;
                    self.from_start = !timeout.is_zero();
                }
                Err(error) => {
                    self.file = None;
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// What is asked of the worker may change while it runs. Where it is new, the first heartbeat from now on begins it. The time for the first
    /// one may become longer or end; a shorter one is for the next start.
    pub(crate) fn ask(&mut self, (timeout, ready): (Duration, Duration), now: Duration) {
        if self.timeout.is_zero() && !timeout.is_zero() {
            self.seen = self.file.as_deref().and_then(|file| stamp(file).ok().flatten());
            self.silent = None;
            self.from_start = false;
            self.looked = now;
        }
        self.timeout = timeout;
        self.ready = self.ready.filter(|_| !ready.is_zero()).map(|now| now.max(ready));
    }

    /// When to look next, on the monotonic clock.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        (!self.timeout.is_zero()).then(|| self.looked + self.pause())
    }

    fn pause(&self) -> Duration {
        (self.timeout / 4).clamp(PAUSE.0, PAUSE.1)
    }

    /// Looks at the file.
    pub(crate) fn feel(&mut self, now: Duration) -> Heartbeat {
        let stamp = self.file.as_deref().and_then(|file| stamp(file).ok().flatten());
        self.judge(stamp, now)
    }

    fn judge(&mut self, stamp: Option<Stamp>, now: Duration) -> Heartbeat {
        // A look that comes late says that the agent was held up, and the worker maybe with it.
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

/// Makes the file where it is missing, writable for the worker's user whoever that is.
fn make(path: &Path) -> io::Result<()> {
    match File::options().write(true).create_new(true).open(path) {
        Ok(file) => file.set_permissions(Permissions::from_mode(0o666)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

fn stamp(path: &Path) -> io::Result<Option<Stamp>> {
    match fs::symlink_metadata(path) {
        Ok(file) => Ok(Some((
            file.ino(),
            file.mtime(),
            file.mtime_nsec(),
            file.ctime(),
            file.ctime_nsec(),
            file.size(),
        ))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests;
