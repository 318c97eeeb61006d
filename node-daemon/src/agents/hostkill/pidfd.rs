//! A process held by a pidfd: a later process with the same PID is never signalled.

use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// Why a process was not killed.
#[derive(Debug, thiserror::Error)]
pub(super) enum KillError {
    /// It has ended, or its PID now belongs to another process.
    #[error("it is gone")]
    Gone,
    /// The kernel has none (before Linux 5.3), or the container runtime's seccomp profile forbids
    /// them.
    #[error("this node offers no pidfds, and without one a signal could reach another process: {0}")]
    NoPidfd(Errno),
    /// The kernel has refused something else.
    #[error(transparent)]
    Refused(Errno),
}

/// A process that is held, while it runs and after.
#[derive(Debug)]
pub(super) struct PidFd(OwnedFd);

impl PidFd {
    /// Holds the process that has this PID now.
    pub(super) fn open(pid: i32) -> Result<Self, KillError> {
        let pid = Pid::from_raw(pid).ok_or(KillError::Gone)?;
        pidfd_open(pid, PidfdFlags::empty())
            .map(Self)
            .map_err(|error| match error {
                Errno::SRCH => KillError::Gone,
                // Holding a process needs no rights: only a filter of system calls refuses it.
                Errno::NOSYS | Errno::PERM => KillError::NoPidfd(error),
                error => KillError::Refused(error),
            })
    }

    /// SIGKILL to this process, and to no other that has its PID.
    pub(super) fn kill(&self) -> Result<(), KillError> {
        pidfd_send_signal(&self.0, Signal::KILL).map_err(|error| match error {
            Errno::SRCH => KillError::Gone,
            Errno::NOSYS => KillError::NoPidfd(error),
            error => KillError::Refused(error),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_process_that_has_ended_is_not_signalled() {
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        let held = PidFd::open(pid).unwrap();
        held.kill().unwrap();
        child.wait().unwrap();
        // From now on another process may have the PID.
        assert!(matches!(held.kill(), Err(KillError::Gone)));
    }

    #[test]
    fn an_unused_pid_holds_no_process() {
        for pid in [0, i32::MAX] {
            assert!(matches!(PidFd::open(pid), Err(KillError::Gone)), "{pid}");
        }
    }
}
