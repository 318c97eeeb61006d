//! Keeps the ports of a worker free for its next attempt, which runs in the same network namespace.
//!
//! If the listening side closes a connection first, the kernel holds its port for a minute
//! (`TIME_WAIT`), and a server without `SO_REUSEADDR` cannot bind it. So connections of processes
//! about to be killed are set to be reset when the kernel closes them (`SO_LINGER` of zero): those
//! at a port on which the worker listens, and those that the other side has closed already, which
//! frees that side's port. All other connections are closed as usual, and so are those of a process
//! with a handler for SIGTERM, until it has outlived its grace.
//!
//! It takes no capability: a process may inspect another of the same user. If that is forbidden
//! (Linux before 5.6, Yama), nothing is done. Nothing is done under a seccomp profile either: the
//! usual ones make the call fail, and some kill the caller.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::sys::{self, Tcp};

/// Most descriptors looked at, for all processes together.
const MAX_DESCRIPTORS: usize = 16_384;
/// Time limit. Thousands of connections take tens of milliseconds, and the agent may have to wait
/// for a CPU.
const MAX_TIME: Duration = Duration::from_millis(500);

/// The worker's TCP sockets that were found in time. None is held open: the agent may have few
/// descriptors.
#[derive(Debug, Default)]
struct WorkerSockets {
    ports: BTreeSet<u16>,
    /// Connections of processes about to be killed, by the socket's name in `/proc`: process and
    /// descriptor.
    connections: BTreeMap<PathBuf, (i32, i32)>,
    /// Sockets of the other processes.
    spared: BTreeSet<PathBuf>,
}

/// Sets the connections of these processes to be reset at their end. `doomed` processes are about
/// to be killed; the others only show on which ports they listen, and their connections stay as
/// they are.
pub(crate) fn reset_at_end(proc: &Path, pids: &[i32], doomed: impl Fn(i32) -> bool) {
    let mut found = WorkerSockets::default();
    let end = Instant::now() + MAX_TIME;
    let mut left = MAX_DESCRIPTORS;
    for pid in pids {
        if Instant::now() >= end {
            break;
        }
        // The process is another user's, has ended or may not be inspected: it is skipped.
        let _ = found.search_process(proc, *pid, doomed(*pid), &mut left, end);
    }
    let _ = found.reset(end);
}

impl WorkerSockets {
    /// Finds the TCP sockets that a process has open.
    fn search_process(
        &mut self,
        proc: &Path,
        pid: i32,
        doomed: bool,
        left: &mut usize,
        end: Instant,
    ) -> io::Result<()> {
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
            let Some(name) = fs::read_link(entry.path()).ok().filter(|to| is_socket(to)) else {
                continue;
            };
            let process = match &held {
                Some(process) => process,
                None => held.insert(sys::hold(pid)?),
            };
            match shared(process, number)? {
                Some((_, tcp)) if tcp.listens => {
                    self.ports.insert(tcp.port);
                }
                Some(_) if doomed => {
                    self.connections.insert(name, (pid, number));
                }
                Some(_) => {
                    self.spared.insert(name);
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Sets those connections to be reset that would keep a port.
    fn reset(&self, end: Instant) -> io::Result<()> {
        let mut held: Option<(i32, OwnedFd)> = None;
        for (name, (pid, number)) in &self.connections {
            if self.spared.contains(name) || Instant::now() >= end {
                continue;
            }
            let process = match held.take().filter(|(of, _)| of == pid) {
                Some((_, process)) => process,
                None => sys::hold(*pid)?,
            };
            if let Some((socket, tcp)) = shared(&process, *number)?
                && !tcp.listens
                && (tcp.is_left || self.ports.contains(&tcp.port))
            {
                let _ = sys::reset_at_end(socket.as_fd());
            }
            held = Some((*pid, process));
        }
        Ok(())
    }
}

fn is_socket(to: &Path) -> bool {
    to.as_os_str().as_encoded_bytes().starts_with(b"socket:")
}

/// A TCP socket of a process; none if it is no such socket, or was closed meanwhile.
fn shared(process: &OwnedFd, number: i32) -> io::Result<Option<(OwnedFd, Tcp)>> {
    match sys::share(process.as_fd(), number) {
        Ok(socket) => Ok(sys::tcp(socket.as_fd()).map(|tcp| (socket, tcp))),
        Err(error) if error.raw_os_error() == Some(libc::EBADF) => Ok(None),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// True if this process has no seccomp profile, and so the worker has none that forbids it.
pub(crate) fn may_inspect(proc: &Path) -> bool {
    fs::read_to_string(proc.join("self/status")).is_ok_and(|status| is_unfiltered(&status))
}

fn is_unfiltered(status: &str) -> bool {
    let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
    mode.is_none_or(|mode| mode.trim() == "0")
}

/// True if SIGTERM ends this process at once: it neither handles nor ignores nor blocks it.
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
mod tests {
    use std::io::{ErrorKind, Read};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn handlers_of_sigterm_are_known_by_the_masks() {
        let status = |blocked: &str, ignored: &str, caught: &str| {
            format!("Name:\tx\nSigBlk:\t{blocked}\nSigIgn:\t{ignored}\nSigCgt:\t{caught}\n")
        };
        let (none, term) = ("0000000000000000", "0000000000004000");
        assert!(is_default(&status(none, none, "ffffffffffffbfff")));
        for (blocked, ignored, caught) in [(term, none, none), (none, term, none), (none, none, term)] {
            assert!(!is_default(&status(blocked, ignored, caught)));
        }
        for odd in [
            "",
            "SigBlk:\t0\nSigIgn:\t0\n",
            "SigBlk:\t0\nSigIgn:\t0\nSigCgt:\tx\n",
        ] {
            assert!(!is_default(odd), "{odd:?}");
        }
    }

    #[test]
    fn under_a_seccomp_profile_nothing_is_tried() {
        assert!(is_unfiltered("Name:\tx\nSeccomp:\t0\nSeccomp_filters:\t0\n"));
        assert!(is_unfiltered("Name:\tx\n"));
        assert!(!is_unfiltered("Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t1\n"));
    }

    /// True if the other side of a connection sees a reset when this side closes it.
    fn is_reset(mut other: TcpStream) -> bool {
        match other.read(&mut [0; 1]) {
            Ok(0) => false,
            Err(error) if error.kind() == ErrorKind::ConnectionReset => true,
            other => panic!("{other:?}"),
        }
    }

    /// One test, because each has its own sockets changed by the others.
    #[test]
    fn connections_that_would_keep_a_port_are_reset_and_others_closed() {
        accepted();
        left_by_the_other_side();
    }

    fn accepted() {
        let own = std::process::id().cast_signed();
        let (server, elsewhere) = (listen(), listen());
        for doomed in [false, true] {
            let client = TcpStream::connect(server.local_addr().expect("its address")).expect("connect");
            let (accepted, _) = server.accept().expect("accept");
            let out = TcpStream::connect(elsewhere.local_addr().expect("its address")).expect("connect");
            let (far, _) = elsewhere.accept().expect("accept");
            // Only the server's process, which is this one, listens at these ports; `out` stands
            // for what it has connected to.
            let proc = Path::new("/proc");
            reset_at_end(proc, &[own], |_| doomed);
            drop(accepted);
            assert_eq!(is_reset(client), doomed);
            drop(out);
            assert!(!is_reset(far));
        }
    }

    fn left_by_the_other_side() {
        let own = std::process::id().cast_signed();
        let server = listen();
        let client = TcpStream::connect(server.local_addr().expect("its address")).expect("connect");
        let (accepted, _) = server.accept().expect("accept");
        accepted.shutdown(std::net::Shutdown::Write).expect("close it");
        let mut buffer = [0; 1];
        assert_eq!((&client).read(&mut buffer).expect("its end"), 0);
        let socket = client.as_fd();
        assert!(sys::tcp(socket).is_some_and(|tcp| tcp.is_left && !tcp.listens));
        reset_at_end(Path::new("/proc"), &[own], |_| true);
        drop(client);
        assert!(is_reset(accepted));
    }

    fn listen() -> TcpListener {
        TcpListener::bind("127.0.0.1:0").expect("bind")
    }
}
