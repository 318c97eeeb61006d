//! System calls for the sockets of standbys.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::Duration;

use super::{Interest, check, wait_ready};

/// Two connected sockets that keep the bounds of messages and tell when the other end is gone. The
/// first never blocks; neither outlives an exec unless that is asked for.
pub(crate) fn pair() -> io::Result<(UnixDatagram, OwnedFd)> {
    let mut ends = [-1; 2];
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `ends` has room for the two descriptors, which nothing else owns.
    let [ours, theirs] = unsafe {
        check(libc::socketpair(libc::AF_UNIX, kind, 0, ends.as_mut_ptr()))?;
        ends.map(|end| OwnedFd::from_raw_fd(end))
    };
    let ours = UnixDatagram::from(ours);
    ours.set_nonblocking(true)?;
    Ok((ours, theirs))
}

/// Memory that other processes can share, by its descriptor. It does not outlive an exec unless
/// that is asked for.
pub(crate) fn memory(name: &CStr) -> io::Result<OwnedFd> {
    // SAFETY: `name` is live during the call; the descriptor that it returns is owned by nothing
    // else.
    unsafe {
        Ok(OwnedFd::from_raw_fd(check(libc::memfd_create(
            name.as_ptr(),
            libc::MFD_CLOEXEC,
        ))?))
    }
}

/// A descriptor that is readable while one of the descriptors that it watches is. A closed one
/// leaves it by itself.
#[derive(Debug)]
pub(crate) struct Watched(OwnedFd);

impl Watched {
    pub(crate) fn new() -> io::Result<Self> {
        // SAFETY: no memory is involved; the descriptor that it returns is owned by nothing else.
        let fd = unsafe { OwnedFd::from_raw_fd(check(libc::epoll_create1(libc::EPOLL_CLOEXEC))?) };
        Ok(Self(fd))
    }

    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN.cast_unsigned(),
            u64: 0,
        };
        // SAFETY: `event` is live during the call.
        check(unsafe {
            libc::epoll_ctl(
                self.0.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                fd.as_raw_fd(),
                &raw mut event,
            )
        })
        .map(drop)
    }

    /// Stops watching.
    pub(crate) fn ignore(&self, fd: BorrowedFd<'_>) {
        let (all, fd) = (self.0.as_raw_fd(), fd.as_raw_fd());
        // SAFETY: no memory is involved. It fails only if the descriptor is not watched.
        let _ = check(unsafe { libc::epoll_ctl(all, libc::EPOLL_CTL_DEL, fd, std::ptr::null_mut()) });
    }

    /// True if one is ready now.
    pub(crate) fn is_ready(&self) -> bool {
        let interest = Interest {
            fd: self.0.as_raw_fd(),
            write: false,
        };
        wait_ready([Some(interest)], Some(Duration::ZERO)).map_or(true, |[ready]| ready)
    }

    pub(crate) fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}
