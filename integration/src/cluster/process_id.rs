//! Identifies processes by their id and their start time, so that a reused id is never signalled.

use std::fs;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

/// Identifies one process until the machine reboots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessId {
    /// The process id.
    pub pid: i32,
    /// Start time in clock ticks since boot.
    pub start_time: u64,
}

impl ProcessId {
    /// The process that has this id now.
    pub fn of(pid: Pid) -> Option<Self> {
        let (state, start_time) = stat(pid)?;
        (!is_over(state)).then_some(Self {
            pid: pid.as_raw(),
            start_time,
        })
    }

    /// This process.
    pub fn own() -> Option<Self> {
        Self::of(Pid::this())
    }

    /// The process id.
    pub fn pid(self) -> Pid {
        Pid::from_raw(self.pid)
    }

    /// True if any of its threads still runs. A zombie does not run. The first thread of a killed
    /// process may end before others, which still hold its open files and ports.
    pub fn is_alive(self) -> bool {
        let Some((state, start_time)) = stat(self.pid()) else {
            return false;
        };
        start_time == self.start_time && (!is_over(state) || threads(self.pid()) > 1)
    }

    /// Sends a signal if it still runs, and returns true if it did.
    pub fn signal(self, signal: Signal) -> bool {
        self.is_alive() && kill(self.pid(), signal).is_ok()
    }
}

/// True if the state letter is that of a thread that has ended.
fn is_over(state: char) -> bool {
    matches!(state, 'Z' | 'X')
}

/// The number of threads of the process, zombies included.
fn threads(pid: Pid) -> usize {
    fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count)
}

/// State letter and start time from `/proc/<pid>/stat`.
fn stat(pid: Pid) -> Option<(char, u64)> {
    parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses the text for [`stat`]. The command's name may have spaces and brackets.
pub(super) fn parse_stat(text: &str) -> Option<(char, u64)> {
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}
