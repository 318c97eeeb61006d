//! Where heartbeats come from: a file that the worker touches, or a socket that it sends datagrams
//! to.
//!
//! It promises:
//! - A datagram is read as soon as it arrives, so that a full queue never holds up a worker that
//!   sends many. What it says of the worker's work is [taken in](super::facts).
//! - What was sent before the worker was started does not count: each start has a socket of its
//!   own.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use lockstep_protocol::progress::Progress;

use super::facts;
use crate::sys::{Interest, with_umask};

/// Datagrams that are read at a time, so that a flood cannot starve the signals.
const READS: usize = 16;

/// A value that differs after each heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stamp {
    /// What changes when a file is touched, written or replaced: inode, times of change and size.
    File(u64, [i64; 4], u64),
    /// How many datagrams have arrived.
    Datagrams(u64),
}

/// Where the heartbeats of a worker come from.
#[derive(Debug)]
pub(super) enum Source {
    File(PathBuf),
    /// There is no socket before the worker is started.
    Socket {
        path: PathBuf,
        socket: Option<UnixDatagram>,
        received: u64,
    },
}

impl Source {
    pub(super) fn file(path: PathBuf) -> Self {
        Self::File(path)
    }

    pub(super) fn socket(path: PathBuf) -> Self {
        Self::Socket {
            path,
            socket: None,
            received: 0,
        }
    }

    /// The path that the worker gets.
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::File(path) | Self::Socket { path, .. } => path,
        }
    }

    /// Creates the file if it is missing, or a new socket, for any user to touch or send to.
    ///
    /// # Errors
    /// When it cannot be created.
    pub(super) fn make(&mut self) -> io::Result<()> {
        match self {
            Self::File(path) => make_file(path),
            Self::Socket { path, socket, .. } => {
                *socket = None;
                *socket = Some(bind(path)?);
                Ok(())
            }
        }
    }

    /// What to wait for, besides a deadline.
    pub(super) fn interest(&self) -> Option<Interest> {
        match self {
            Self::File(_) | Self::Socket { socket: None, .. } => None,
            Self::Socket {
                socket: Some(socket), ..
            } => Some(Interest {
                fd: socket.as_raw_fd(),
                write: false,
            }),
        }
    }

    /// Reads the datagrams that have arrived, and what they say.
    pub(super) fn take(&mut self, progress: &mut Progress) {
        if let Self::Socket {
            socket: Some(socket),
            received,
            ..
        } = self
        {
            let mut datagram = [0; facts::LONGEST + 1];
            for _ in 0..READS {
                match socket.recv(&mut datagram) {
                    Ok(length) => {
                        *received = received.wrapping_add(1);
                        facts::take(progress, datagram.get(..length).unwrap_or_default());
                    }
                    Err(error) if error.kind() == ErrorKind::Interrupted => {}
                    Err(_) => return,
                }
            }
        }
    }

    /// The current stamp; none if there is no file, or if it cannot be read.
    pub(super) fn stamp(&self) -> Option<Stamp> {
        match self {
            Self::File(path) => fs::symlink_metadata(path).ok().map(|file| {
                Stamp::File(
                    file.ino(),
                    [file.mtime(), file.mtime_nsec(), file.ctime(), file.ctime_nsec()],
                    file.size(),
                )
            }),
            Self::Socket { received, .. } => Some(Stamp::Datagrams(*received)),
        }
    }
}

fn make_file(path: &Path) -> io::Result<()> {
    match File::options().write(true).create_new(true).open(path) {
        Ok(file) => file.set_permissions(Permissions::from_mode(0o666)),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
}

/// Binds a socket in place of the former one, which may be an earlier container's.
fn bind(path: &Path) -> io::Result<UnixDatagram> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    // The worker may send as any user. Changing the permissions afterwards is not safe: another
    // container may have replaced the file by then.
    let socket = with_umask(0o111, || UnixDatagram::bind(path))?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}
