//! Keeps the ports of a worker free for its next attempt, which finds the same network namespace.
//!
//! Where the side that listened closes a connection first, the kernel holds its port for a minute (`TIME_WAIT`), and a server without `SO_REUSEADDR` cannot
//! have it. So connections of processes that are about to be killed are made to be reset when the kernel closes them (`SO_LINGER` of zero): those at a port
//! on which the worker listens, and those that the other side has closed already, which frees that side's port. Whatever else is
//! connected is closed as ever, and so is all of a process that has a handler for SIGTERM, until it has outlived its grace.
//!
//! It takes no capability: a process may be looked into by another of the same user. Where that is forbidden (Linux before 5.6, Yama), nothing is
//! done; nor where there is a seccomp profile: the usual ones have it fail, and some end who tries.

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::sys::{self, Tcp};

/// Descriptors looked at, of all processes together.
const MAX_DESCRIPTORS: usize = 16_384;
/// How long it may take: a restart does not wait for more.
const MAX_TIME: Duration = Duration::from_millis(20);

/// The worker's TCP sockets that were found in time.
#[derive(Debug, Default)]
struct Found {
    ports: BTreeSet<u16>,
    /// Connections of processes that are about to be killed.
    connections: Vec<(OwnedFd, Tcp)>,
}

/// Has the connections of these processes reset at their end. `doomed` of them are about to be killed; the others only say on which ports they listen.
pub(crate) fn reset_at_end(proc: &Path, pids: &[i32], doomed: impl Fn(i32) -> bool) {
    let mut found = Found::default();
    let end = Instant::now() + MAX_TIME;
    let mut left = MAX_DESCRIPTORS;
    for pid in pids {
        if Instant::now() >= end {
            break;
        }
        // Of another user, ended, or not to be looked into: nothing to be done about it.
        let _ = found.look(proc, *pid, doomed(*pid), &mut left, end);
    }
    for (socket, tcp) in &found.connections {
        if tcp.is_left || found.ports.contains(&tcp.port) {
            let _ = sys::reset_at_end(socket.as_fd());
        }
    }
}

impl Found {
    fn look(
        &mut self,
        proc: &Path,
        pid: i32,
        doomed: bool,
        left: &mut usize,
        end: Instant,
    ) -> std::io::Result<()> {
        let folder = proc.join(format!("{pid}/fd"));
        let mut held = None;
        for entry in fs::read_dir(folder)?.flatten() {
            if *left == 0 || Instant::now() >= end {
                return Ok(());
            }
            *left -= 1;
            let Some(number) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            let is_socket = fs::read_link(entry.path())
                .is_ok_and(|to| to.as_os_str().as_encoded_bytes().starts_with(b"socket:"));
            if !is_socket {
                continue;
            }
            let process = match &held {
                Some(process) => process,
                None => held.insert(sys::hold(pid)?),
            };
            let socket = match sys::share(process.as_fd(), number) {
                Ok(socket) => socket,
                // Closed meanwhile.
                Err(error) if error.raw_os_error() == Some(libc::EBADF) => continue,
                Err(error) => return Err(error),
            };
            match sys::tcp(socket.as_fd()) {
                Some(tcp) if tcp.listens => {
                    self.ports.insert(tcp.port);
                }
                Some(tcp) if doomed => self.connections.push((socket, tcp)),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Whether there is no seccomp profile on this process, and so none on the worker that forbids it more.
pub(crate) fn may_be_looked_into(proc: &Path) -> bool {
    fs::read_to_string(proc.join("self/status")).is_ok_and(|status| is_unfiltered(&status))
}

fn is_unfiltered(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_none_or(|mode| mode.trim() == "0")
}

/// Whether SIGTERM ends this process at once: it neither handles nor ignores nor blocks it.
pub(crate) fn dies_of_sigterm(proc: &Path, pid: i32) -> bool {
    fs::read_to_string(proc.join(format!("{pid}/status"))).is_ok_and(|status| is_default(&status))
}

fn is_default(status: &str) -> bool {
    const BIT: u64 = 1 << (libc::SIGTERM - 1);
    ["SigBlk:", "SigIgn:", "SigCgt:"].iter().all(|name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
            .is_some_and(|mask| mask & BIT == 0)
    })
}

#[cfg(test)]
mod tests;
