//! The process that has connected.
//!
//! The kernel keeps its PID (SO_PEERCRED). Once the process has ended and was reaped, another one
//! may get the PID while the connection is still open, if the process has passed it on. From Linux
//! 6.5 on the kernel gives a pidfd of the process itself (SO_PEERPIDFD), which tells at any time if
//! the PID is still its own. If it is, what was read from `/proc` before belongs to that process
//! and to no other.

use std::fs;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};

use super::PeerError;

/// The process at the other end of a socket.
#[derive(Debug)]
pub struct Peer {
    pid: Option<i32>,
    hold: Hold,
}

/// What is known of the process besides its PID.
#[derive(Debug)]
enum Hold {
    Held(OwnedFd),
    /// The kernel has no SO_PEERPIDFD: the PID has to do.
    Unsupported,
    /// It had ended before it could be held.
    Gone,
    /// The kernel has refused something else.
    Refused(Errno),
}

impl Peer {
    /// The peer of a connection.
    #[must_use]
    pub fn of(stream: &impl AsFd) -> Self {
        Self {
            pid: getsockopt(stream, sockopt::PeerCredentials)
                .ok()
                .map(|credentials| credentials.pid()),
            hold: held(getsockopt(stream, sockopt::PeerPidfd)),
        }
    }

    /// Its PID, in the pid namespace of the daemon.
    ///
    /// # Errors
    /// When the kernel names none: the daemon is not in the host's namespace.
    pub(crate) fn pid(&self) -> Result<i32, PeerError> {
        self.pid.filter(|pid| *pid > 0).ok_or(PeerError::Invisible)
    }

    /// Checks that the PID is still its own, as far as the kernel can tell.
    ///
    /// # Errors
    /// When it is not, or when the kernel supports the check and the check fails.
    pub(super) fn check_unchanged(&self, pid: i32) -> Result<(), PeerError> {
        let held = match &self.hold {
            Hold::Held(held) => held,
            Hold::Unsupported => return Ok(()),
            Hold::Gone => return Err(PeerError::Gone(pid)),
            Hold::Refused(error) => return Err(PeerError::Unheld { pid, error: *error }),
        };
        // The daemon's own `/proc`, wherever that of its peers is.
        let path = format!("/proc/self/fdinfo/{}", held.as_raw_fd()).into();
        let fdinfo = match fs::read_to_string(&path) {
            Ok(fdinfo) => fdinfo,
            Err(source) => return Err(PeerError::Unreadable { path, source }),
        };
        if number(&fdinfo) == Some(pid) {
            Ok(())
        } else {
            Err(PeerError::Gone(pid))
        }
    }

    /// A peer whose process is not held, as before Linux 6.5.
    #[cfg(test)]
    pub(crate) fn numbered(pid: Option<i32>) -> Self {
        Self {
            pid,
            hold: Hold::Unsupported,
        }
    }

    #[cfg(test)]
    pub(super) fn is_held(&self) -> bool {
        matches!(self.hold, Hold::Held(_))
    }
}

fn held(got: Result<OwnedFd, Errno>) -> Hold {
    match got {
        Ok(held) => Hold::Held(held),
        Err(Errno::ENOPROTOOPT) => Hold::Unsupported,
        // Kernels differ in the error that they return.
        Err(Errno::ESRCH | Errno::EINVAL | Errno::ENODATA) => Hold::Gone,
        Err(error) => Hold::Refused(error),
    }
}

/// The number in a pidfd's `fdinfo`: -1 once the process was reaped.
fn number(fdinfo: &str) -> Option<i32> {
    let number = fdinfo.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    number.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::process::{Child, Command, Stdio};

    use super::super::tests::{ID, proc_with};
    use super::super::{PeerCheck as _, ProcPeerCheck};
    use super::*;

    const SOCKET: &str = "LOCKSTEP_TEST_PEER_SOCKET";

    /// Not a test: the process that connects in the tests below, and stays until its input ends.
    #[test]
    fn connects() {
        if let Some(path) = std::env::var_os(SOCKET) {
            let mut stream = UnixStream::connect(path).unwrap();
            stream.write_all(b"here\n").unwrap();
            std::io::stdin().read_line(&mut String::new()).unwrap();
        }
    }

    struct Connected {
        process: Child,
        stream: UnixStream,
        _dir: tempfile::TempDir,
    }

    /// Another process that has connected to a socket.
    fn connected() -> Connected {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "agents::peer::process::tests::connects"])
            .env(SOCKET, &path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let (stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        assert_eq!(line, "here\n");
        Connected {
            process,
            stream,
            _dir: dir,
        }
    }

    impl Connected {
        fn pid(&self) -> i32 {
            i32::try_from(self.process.id()).unwrap()
        }

        /// Ends the process, so that its PID may be reused, and returns what `/proc` would show if
        /// an agent had it now.
        fn replaced(&mut self) -> (tempfile::TempDir, ProcPeerCheck) {
            drop(self.process.stdin.take());
            self.process.wait().unwrap();
            proc_with(
                self.pid(),
                &format!("0::/kubepods/pod1/{ID}\n"),
                &format!("{}\t1", self.pid()),
            )
        }
    }

    #[test]
    fn a_peer_is_checked_while_it_runs() {
        let mut connected = connected();
        let peer = Peer::of(&connected.stream);
        let pid = connected.pid();
        assert_eq!(peer.pid().unwrap(), pid);
        peer.check_unchanged(pid).unwrap();
        let (_dir, check) = proc_with(pid, &format!("0::/kubepods/pod1/{ID}\n"), &format!("{pid}\t1"));
        assert_eq!(check.check(&peer, &ID.into(), &"1".into()).unwrap(), pid);
        assert_eq!(check.container(&peer).unwrap(), ID.into());
        drop(connected.process.stdin.take());
        connected.process.wait().unwrap();
    }

    #[test]
    fn a_process_that_reuses_the_pid_of_a_peer_is_not_mistaken_for_it() {
        let mut connected = connected();
        let peer = Peer::of(&connected.stream);
        let (_dir, check) = connected.replaced();
        let pid = connected.pid();
        if !peer.is_held() {
            // A kernel before 6.5: the test below covers it.
            assert!(matches!(peer.hold, Hold::Unsupported), "{:?}", peer.hold);
            return;
        }
        for refused in [
            check.check(&peer, &ID.into(), &"1".into()).map(drop),
            check.container(&peer).map(drop),
        ] {
            assert!(
                matches!(refused, Err(PeerError::Gone(gone)) if gone == pid),
                "{refused:?}"
            );
        }
        // Nor one that had ended before it could be held: kernels return an error, or a pidfd that
        // names no process.
        let late = Peer::of(&connected.stream);
        assert!(matches!(
            check.check(&late, &ID.into(), &"1".into()),
            Err(PeerError::Gone(gone)) if gone == pid
        ));
    }

    #[test]
    fn without_peer_pidfds_the_pid_counts() {
        let peer = Peer {
            pid: Some(77),
            hold: held(Err(Errno::ENOPROTOOPT)),
        };
        let (_dir, check) = proc_with(77, &format!("0::/kubepods/pod1/{ID}\n"), "77\t1");
        assert_eq!(check.check(&peer, &ID.into(), &"1".into()).unwrap(), 77);
    }

    #[test]
    fn a_peer_that_cannot_be_held_is_refused() {
        let (_dir, check) = proc_with(77, &format!("0::/kubepods/pod1/{ID}\n"), "77\t1");
        for (error, expected) in [
            (Errno::ESRCH, "process 77 has ended"),
            (Errno::EINVAL, "process 77 has ended"),
            (Errno::ENODATA, "process 77 has ended"),
            (Errno::EMFILE, "process 77 cannot be held"),
        ] {
            let peer = Peer {
                pid: Some(77),
                hold: held(Err(error)),
            };
            let refused = check.check(&peer, &ID.into(), &"1".into()).unwrap_err();
            assert!(refused.to_string().starts_with(expected), "{refused}");
        }
    }

    #[test]
    fn a_reaped_process_has_no_pid() {
        assert_eq!(number("pos:\t0\nPid:\t42\nNSpid:\t42\n"), Some(42));
        assert_eq!(number("pos:\t0\nPid:\t-1\n"), Some(-1));
        assert_eq!(number("pos:\t0\n"), None);
    }
}
