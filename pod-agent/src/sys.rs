//! The system calls that std has no safe form of. The only module of the workspace with `unsafe` in
//! it.
//!
//! Nothing here blocks, except [`wait_ready`], which is the loop's one place to sleep.
#![allow(unsafe_code)]

mod handover;
mod messages;
mod standin;

use std::ffi::CString;
use std::fmt;
use std::io::{self, Error, ErrorKind};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::machine::{BootNanos, Exit};
pub(crate) use handover::{Watched, memory, pair};
use libc::{SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGSEGV, SIGTRAP};
pub(crate) use messages::{accept, call, listen, own_uid, peer, receive, send};
pub(crate) use standin::{
    called, close_others, die_of, io_priority, leads_group, let_go_of_streams, memory_policy, personality,
};

/// A signal to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Received {
    pub(crate) signo: i32,
    /// Sent by kill(2) from outside this PID namespace: by the container runtime.
    pub(crate) outside: bool,
    /// Who sent it; 0 if that is no process of this PID namespace.
    pub(crate) sender: i32,
}

/// All signals of this process, blocked and read from a descriptor.
///
/// Blocked signals reach even PID 1 of a namespace, which the kernel otherwise shields from signals
/// that it does not handle.
#[derive(Debug)]
pub(crate) struct Signals {
    fd: OwnedFd,
    before: Mask,
}

/// The signal mask that the container was started with.
#[derive(Clone, Copy)]
pub(crate) struct Mask(libc::sigset_t);

impl fmt::Debug for Mask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mask")
    }
}

impl Signals {
    /// Blocks every signal but those that faults of this process itself raise.
    pub(crate) fn block() -> io::Result<Self> {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        let mut before = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigfillset initialises `set`, sigprocmask `before`; the calls only touch those
        // and this thread's mask.
        let (fd, before) = unsafe {
            check(libc::sigfillset(set.as_mut_ptr()))?;
            // If it were blocked, a SIGPIPE of the agent's own would be read as a signal to pass
            // on.
            for own in [SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGPIPE] {
                check(libc::sigdelset(set.as_mut_ptr(), own))?;
            }
            check(libc::sigprocmask(
                libc::SIG_BLOCK,
                set.as_ptr(),
                before.as_mut_ptr(),
            ))?;
            let flags = libc::SFD_NONBLOCK | libc::SFD_CLOEXEC;
            (
                check(libc::signalfd(-1, set.as_ptr(), flags))?,
                before.assume_init(),
            )
        };
        // SAFETY: signalfd returned a new descriptor that nothing else owns.
        Ok(Self {
            fd: unsafe { OwnedFd::from_raw_fd(fd) },
            before: Mask(before),
        })
    }

    /// The mask before [`Signals::block`].
    pub(crate) fn before(&self) -> Mask {
        self.before
    }

    /// The next pending signal.
    pub(crate) fn next(&self) -> io::Result<Option<Received>> {
        let mut info = MaybeUninit::<libc::signalfd_siginfo>::uninit();
        let size = size_of::<libc::signalfd_siginfo>();
        // SAFETY: the buffer is `size` bytes long.
        let read = unsafe { libc::read(self.fd.as_raw_fd(), info.as_mut_ptr().cast(), size) };
        if read < 0 {
            return match Error::last_os_error() {
                error if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(None),
                error => Err(error),
            };
        }
        if read.cast_unsigned() != size {
            return Ok(None);
        }
        // SAFETY: the kernel has filled the whole structure, which is plain data.
        let info = unsafe { info.assume_init() };
        Ok(Some(Received {
            signo: info.ssi_signo.cast_signed(),
            outside: info.ssi_code == libc::SI_USER && info.ssi_pid == 0,
            sender: info.ssi_pid.cast_signed(),
        }))
    }
}

impl AsRawFd for Signals {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// One descriptor to wait for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    pub(crate) fd: RawFd,
    pub(crate) write: bool,
}

/// Sleeps until a descriptor is ready or has failed, or the time is over. Returns true for each
/// descriptor that is ready or has failed.
pub(crate) fn wait_ready<const N: usize>(
    interests: [Option<Interest>; N],
    timeout: Option<Duration>,
) -> io::Result<[bool; N]> {
    let mut fds = interests.map(|interest| libc::pollfd {
        fd: interest.map_or(-1, |interest| interest.fd),
        events: libc::POLLIN
            | if interest.is_some_and(|i| i.write) {
                libc::POLLOUT
            } else {
                0
            },
        revents: 0,
    });
    let timeout = timeout.map(|timeout| libc::timespec {
        tv_sec: timeout.as_secs().min(1 << 30).cast_signed(),
        tv_nsec: timeout.subsec_nanos().into(),
    });
    let timeout = timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: `fds` holds N entries; `timeout` is null or points to a live timespec; a null mask
    // leaves the mask unchanged.
    let ready = unsafe { libc::ppoll(fds.as_mut_ptr(), N as libc::nfds_t, timeout, std::ptr::null()) };
    match check(ready) {
        Ok(_) => Ok(fds.map(|fd| fd.revents != 0)),
        Err(error) if error.kind() == ErrorKind::Interrupted => Ok([false; N]),
        Err(error) => Err(error),
    }
}

/// True if a write of up to 4096 bytes would not block now.
pub(crate) fn writable(fd: BorrowedFd<'_>) -> bool {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events: libc::POLLOUT,
        revents: 0,
    };
    // SAFETY: one entry, live during the call.
    let ready = unsafe { libc::poll(&raw mut poll, 1, 0) };
    ready == 1 && poll.revents & libc::POLLOUT != 0
}

/// A child to reap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaped {
    Child(i32, Exit),
    /// Children live, none has ended.
    NotYet,
    /// This process has no children, so no descendants either: orphans become its children.
    NoChildren,
}

/// Reaps one child that has ended.
pub(crate) fn reap() -> io::Result<Reaped> {
    let mut status = 0;
    // SAFETY: `status` is live during the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::__WALL) };
    match check(pid) {
        Ok(0) => Ok(Reaped::NotYet),
        Ok(pid) if libc::WIFSIGNALED(status) => Ok(Reaped::Child(pid, Exit::Signal(libc::WTERMSIG(status)))),
        Ok(pid) => Ok(Reaped::Child(pid, Exit::Code(libc::WEXITSTATUS(status)))),
        Err(error) if error.raw_os_error() == Some(libc::ECHILD) => Ok(Reaped::NoChildren),
        Err(error) => Err(error),
    }
}

/// True if this process has children, ended ones included.
pub(crate) fn has_children() -> bool {
    let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT | libc::__WALL;
    let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
    // SAFETY: `info` is live during the call.
    check(unsafe { libc::waitid(libc::P_ALL, 0, info.as_mut_ptr(), flags) }).is_ok()
}

/// Sends a signal to a process (`pid` > 0), to a process group (< -1) or to all but this process
/// and PID 1 (-1).
pub(crate) fn kill(pid: i32, signal: i32) -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::kill(pid, signal) }).map(drop)
}

/// Now, by the clock that gives processes their start times; 0 if it cannot be read.
pub(crate) fn boot_nanos() -> BootNanos {
    let mut time = MaybeUninit::<libc::timespec>::uninit();
    // SAFETY: `time` is live during the call, and read only if the call has filled it.
    let time = unsafe {
        match check(libc::clock_gettime(libc::CLOCK_BOOTTIME, time.as_mut_ptr())) {
            Ok(_) => time.assume_init(),
            Err(_) => return BootNanos::default(),
        }
    };
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    BootNanos(seconds.saturating_mul(1_000_000_000) + u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// Makes orphaned descendants children of this process, as they are of PID 1.
pub(crate) fn become_subreaper() -> io::Result<()> {
    // SAFETY: no memory is involved.
    check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) }).map(drop)
}

/// Runs `run` under this umask. This process has one thread, so nothing else is affected.
pub(crate) fn with_umask<T>(mask: libc::mode_t, run: impl FnOnce() -> T) -> T {
    // SAFETY: it takes no memory, and cannot fail.
    let before = unsafe { libc::umask(mask) };
    let done = run();
    // SAFETY: as above.
    unsafe { libc::umask(before) };
    done
}

/// Detaches the topmost mount of a place, and what is mounted below it. What still uses it keeps it
/// until it ends.
///
/// It follows no link at the end of the path. If nothing else uses the file system, the kernel
/// closes it during the call.
pub(crate) fn detach(point: &Path) -> io::Result<()> {
    let point = CString::new(point.as_os_str().as_bytes())?;
    // SAFETY: `point` is live during the call, and ends with a zero.
    check(unsafe { libc::umount2(point.as_ptr(), libc::MNT_DETACH | libc::UMOUNT_NOFOLLOW) }).map(drop)
}

/// Facts about a TCP socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tcp {
    /// Its own port.
    pub(crate) port: u16,
    pub(crate) listens: bool,
    /// The other side has closed the connection, and this one has not.
    pub(crate) is_left: bool,
}

/// Holds a process, so that a later one with its PID is never mistaken for it.
pub(crate) fn hold(pid: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved; the descriptor that it returns is owned by nothing else.
    unsafe { owned(libc::syscall(libc::SYS_pidfd_open, pid, 0)) }
}

/// Duplicates a descriptor of a process.
pub(crate) fn share(process: BorrowedFd<'_>, number: i32) -> io::Result<OwnedFd> {
    // SAFETY: no memory is involved; the descriptor that it returns is owned by nothing else.
    unsafe {
        owned(libc::syscall(
            libc::SYS_pidfd_getfd,
            process.as_raw_fd(),
            number,
            0,
        ))
    }
}

/// None if it is no TCP socket over IPv4 or IPv6.
pub(crate) fn tcp(socket: BorrowedFd<'_>) -> Option<Tcp> {
    /// `TCP_CLOSE_WAIT` of the kernel, as `TCP_INFO` begins with it.
    const CLOSE_WAIT: u8 = 8;
    let protocol: i32 = option(socket, libc::SOL_SOCKET, libc::SO_PROTOCOL)?;
    if protocol != libc::IPPROTO_TCP {
        return None;
    }
    let listens: i32 = option(socket, libc::SOL_SOCKET, libc::SO_ACCEPTCONN)?;
    let state: u8 = option(socket, libc::IPPROTO_TCP, libc::TCP_INFO)?;
    // SAFETY: sockaddr_in6 is plain data; zeroes are valid.
    let mut address: libc::sockaddr_in6 = unsafe { mem::zeroed() };
    let mut size = size_of::<libc::sockaddr_in6>() as libc::socklen_t;
    // SAFETY: `address` is live and `size` bytes long.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut size) }).ok()?;
    Some(Tcp {
        // It is at the same place in an address of IPv4.
        port: u16::from_be(address.sin6_port),
        listens: listens != 0,
        is_left: state == CLOSE_WAIT,
    })
}

/// Sets the connection to be reset, and its port freed, when its last descriptor is closed.
pub(crate) fn reset_at_end(socket: BorrowedFd<'_>) -> io::Result<()> {
    let linger = libc::linger {
        l_onoff: 1,
        l_linger: 0,
    };
    let size = size_of::<libc::linger>() as libc::socklen_t;
    let value = (&raw const linger).cast();
    // SAFETY: `value` is live and `size` bytes long.
    check(unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_LINGER, value, size) })
        .map(drop)
}

/// An option of a socket, or its first bytes.
fn option<T: Default>(socket: BorrowedFd<'_>, level: i32, name: i32) -> Option<T> {
    let mut value = T::default();
    let mut size = size_of::<T>() as libc::socklen_t;
    let to = (&raw mut value).cast();
    // SAFETY: `to` is `size` bytes long, and an integer, for which any bytes will do.
    check(unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, to, &raw mut size) }).ok()?;
    Some(value)
}

/// The new descriptor that a system call returned.
///
/// # Safety
/// Nothing else owns the descriptor.
unsafe fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    match i32::try_from(result) {
        // SAFETY: as the caller guarantees.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(Error::last_os_error()),
    }
}

/// Connects without ever blocking, even if the daemon's queue is full.
pub(crate) fn connect(path: &Path) -> io::Result<UnixStream> {
    let address = messages::address(path)?;
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved; the descriptor that it returns is owned by nothing else.
    let stream = unsafe { UnixStream::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?) };
    let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is live and `size` bytes long.
    check(unsafe { libc::connect(stream.as_raw_fd(), (&raw const address).cast(), size) })?;
    Ok(stream)
}

/// What happens to the terminal of a command's session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Terminal {
    /// The command, whose stdin is the terminal, takes its foreground.
    Claimed,
    /// Nothing. Stdin may be no terminal.
    LeftAlone,
}

/// Makes the command start with this signal mask.
///
/// Std would let it inherit the agent's mask, in which everything is blocked.
pub(crate) fn hand_over(command: &mut Command, mask: Mask, terminal: Terminal) {
    let claim = move || {
        // SAFETY: called between fork and exec: only async-signal-safe calls, and memory of this
        // closure. SIGTTOU, which a background process gets for claiming the terminal, is still
        // blocked during the claim.
        unsafe {
            if terminal == Terminal::Claimed {
                libc::tcsetpgrp(libc::STDIN_FILENO, libc::getpgrp());
            }
            check(libc::sigprocmask(
                libc::SIG_SETMASK,
                &raw const mask.0,
                std::ptr::null_mut(),
            ))
            .map(drop)
        }
    };
    // SAFETY: the closure keeps to what is allowed between fork and exec, see above.
    unsafe { command.pre_exec(claim) };
}

/// Lets the command inherit this descriptor, which stays closed to all other programs.
pub(crate) fn keep_open(command: &mut Command, fd: RawFd) {
    // SAFETY: called between fork and exec: one async-signal-safe call.
    let keep = move || unsafe { check(libc::fcntl(fd, libc::F_SETFD, 0)).map(drop) };
    // SAFETY: the closure keeps to what is allowed between fork and exec, see above.
    unsafe { command.pre_exec(keep) };
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 {
        Err(Error::last_os_error())
    } else {
        Ok(result)
    }
}
