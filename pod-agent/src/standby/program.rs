//! Programs that park themselves: the worker's own command is started ahead, and blocks in its own
//! call `park()` until it is released.
//!
//! ```text
//!   program, in park()                  agent
//!   ready ──────>                       it has come this far
//!                    <────── start, and the changes of its environment
//!   started ──────>                     it goes on
//! ``` A worker that is started cold has the same socket, and the agent answers it at once. So the
//! agent learns that the program parks.
//!
//! It promises:
//! - A program is started ahead only once the running worker has parked itself. A program that does
//!   not park is never run twice.
//! - A standby is told to go on only once its `oom_score_adj` is that of a worker again.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::process::Command;
use std::time::Duration;

use super::family;
use super::process::{Process, State};
use crate::sys::{self, Mask, Watched};
use crate::worker;

/// The variable with the descriptor of the socket on which the program parks.
const PARK: &str = "LOCKSTEP_PARK";
/// The shortest time limit for a standby to park.
const PATIENCE: Duration = Duration::from_secs(60);
/// How many times as long as the worker a standby may take to park: it gets less CPU time.
const TIMES: u32 = 4;
/// After this many standbys in a row that do not park, no more are started.
const MOST_FAILURES: u32 = 3;
/// Why there is no standby before the worker has parked.
pub(super) const NOT_YET: &str = "the program has not called park() yet";

/// A worker's program that may park itself.
#[derive(Debug, Default)]
pub(super) struct Program {
    /// The agent's end of the socket of a worker that is being started, and the worker's.
    ends: Option<(UnixDatagram, OwnedFd)>,
    /// The worker that was started cold, until it goes on.
    worker: Option<Process>,
    /// When the attempt began.
    began: Duration,
    /// True if the running worker has parked.
    has_parked: bool,
    /// How long the worker took until it parked, when it was last started cold.
    took: Duration,
    /// When the standby was started.
    since: Duration,
    /// The standby's `oom_score_adj` before it was raised, if it was.
    score: Option<i32>,
    /// How many standbys in a row have not parked.
    failures: u32,
}

impl Program {
    /// An attempt begins.
    pub(super) fn begin(&mut self, now: Duration) {
        self.began = now;
        self.has_parked = false;
        self.worker = None;
    }

    /// Gives a worker that starts cold its socket. If there is none, `park()` returns at once.
    pub(super) fn learn(&mut self, worker: &mut Command, watched: &Watched) {
        self.ends = None;
        worker.env_remove(PARK);
        if let Ok((ours, theirs)) = sys::pair()
            && watched.watch(ours.as_fd()).is_ok()
        {
            give(worker, &theirs);
            self.ends = Some((ours, theirs));
        }
    }

    /// The worker has been started cold, and has this PID.
    pub(super) fn runs(&mut self, pid: i32) {
        self.worker = self.ends.take().map(|(ours, _)| Process::parking(pid, ours));
    }

    /// True if the worker that was started cold may still send messages.
    pub(super) fn awaits_worker(&self) -> bool {
        self.worker.is_some()
    }

    /// Reads the messages of the worker that was started cold, and lets it go on if it has parked.
    /// Returns its memory in KiB when it parked, which is that of a standby.
    pub(super) fn hear_worker(&mut self, now: Duration) -> Option<u64> {
        let worker = self.worker.as_mut()?;
        worker.listen();
        let mut memory = None;
        if let State::Ready(ready) = worker.state {
            // If sending fails, the worker has ended.
            worker.release([]);
            memory = Some(ready.memory_kib);
            self.has_parked = true;
            self.took = now.saturating_sub(self.began);
        }
        if worker.closed || worker.state == State::Confirmed {
            self.worker = None;
        }
        memory
    }

    /// Checks that the program can be started ahead now. The error is the reason why not.
    pub(super) fn may_start(&self) -> Result<(), String> {
        self.has_parked.then_some(()).ok_or_else(|| NOT_YET.to_owned())
    }

    /// Starts the worker's command ahead.
    pub(super) fn start(
        &mut self,
        command: &[OsString],
        mask: Mask,
        watched: &Watched,
        now: Duration,
    ) -> io::Result<Process> {
        let (program, args) = command.split_first().ok_or(io::ErrorKind::Unsupported)?;
        let (ours, theirs) = sys::pair()?;
        let mut command = Command::new(program);
        command
            .args(args)
            .env_remove(worker::HEARTBEAT)
            .env_remove(worker::ATTEMPT);
        give(&mut command, &theirs);
        let standby = Process::spawn(command, mask, &[], ours, watched)?;
        self.score = family::expose(standby.pid);
        self.since = now;
        Ok(standby.that_parks())
    }

    /// The time limit of the standby to park, if it has exceeded that.
    pub(super) fn is_overdue(&self, standby: &Process, now: Duration) -> Option<Duration> {
        let most = PATIENCE.max(self.took * TIMES);
        (standby.state == State::Warming && now >= self.since + most).then_some(most)
    }

    /// A standby waits.
    pub(super) fn standby_waits(&mut self) {
        self.failures = 0;
    }

    /// Records that a standby has not parked. Returns true if no more should be started.
    pub(super) fn count_failure(&mut self) -> bool {
        self.failures += 1;
        self.failures >= MOST_FAILURES
    }

    /// Resets the standby's `oom_score_adj` to that of a worker. Returns false if that fails.
    pub(super) fn prepare_release(&self, standby: &Process) -> bool {
        self.score
            .is_none_or(|before| family::shelter(standby.pid, before))
    }

    /// The standby has been told to go on as the worker.
    pub(super) fn standby_goes_on(&mut self) {
        self.has_parked = true;
    }
}

/// Lets a command inherit the socket on which it parks.
fn give(command: &mut Command, socket: &OwnedFd) {
    command.env(PARK, socket.as_raw_fd().to_string());
    sys::keep_open(command, socket.as_raw_fd());
}

#[cfg(test)]
mod tests;
