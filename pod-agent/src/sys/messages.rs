//! System calls for sockets whose messages keep their bounds and may carry descriptors.

use std::io::{self, Error, ErrorKind};
use std::mem::{self, MaybeUninit};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::path::Path;

use super::{check, with_umask};

/// Most descriptors in one message.
pub(crate) const MAX_DESCRIPTORS: usize = 4;
/// Room for a control message with [`MAX_DESCRIPTORS`], in words.
const CONTROL: usize = 8;
/// Connections that wait to be accepted.
const QUEUE: i32 = 64;

/// Who has connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
}

/// The address of a socket in the file system.
pub(super) fn address(path: &Path) -> io::Result<libc::sockaddr_un> {
    let bytes = path.as_os_str().as_bytes();
    // SAFETY: sockaddr_un is plain data; zeroes are valid.
    let mut address: libc::sockaddr_un = unsafe { mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    if bytes.len() >= address.sun_path.len() || bytes.contains(&0) {
        return Err(ErrorKind::InvalidInput.into());
    }
    for (to, from) in address.sun_path.iter_mut().zip(bytes) {
        *to = from.cast_signed();
    }
    Ok(address)
}

fn socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: no memory is involved; the descriptor that it returns is owned by nothing else.
    unsafe { Ok(OwnedFd::from_raw_fd(check(libc::socket(libc::AF_UNIX, kind, 0))?)) }
}

/// Listens at a path, for its owner alone. Neither it nor what it accepts ever blocks.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let address = address(path)?;
    let socket = socket()?;
    let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is live and `size` bytes long.
    let bind = || check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size) });
    with_umask(0o177, bind)?;
    // SAFETY: no memory is involved.
    check(unsafe { libc::listen(socket.as_raw_fd(), QUEUE) })?;
    let listener = UnixListener::from(socket);
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The next connection.
pub(crate) fn accept(listener: &UnixListener) -> io::Result<UnixDatagram> {
    let (stream, _) = listener.accept()?;
    let socket = UnixDatagram::from(OwnedFd::from(stream));
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Connects to a listener. The connection blocks.
pub(crate) fn call(path: &Path) -> io::Result<UnixDatagram> {
    let address = address(path)?;
    let socket = socket()?;
    let size = size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // SAFETY: `address` is live and `size` bytes long.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size) })?;
    Ok(socket.into())
}

/// Who is at the other end of a connection.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> io::Result<Peer> {
    let mut found = MaybeUninit::<libc::ucred>::uninit();
    let mut size = size_of::<libc::ucred>() as libc::socklen_t;
    let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERCRED);
    // SAFETY: `found` is `size` bytes long, and read only if the call has filled it.
    let found = unsafe {
        let to = found.as_mut_ptr().cast();
        check(libc::getsockopt(
            socket.as_raw_fd(),
            level,
            name,
            to,
            &raw mut size,
        ))?;
        found.assume_init()
    };
    Ok(Peer {
        pid: found.pid,
        uid: found.uid,
    })
}

/// This process's user.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: it takes no memory, and cannot fail.
    unsafe { libc::geteuid() }
}

/// Sends one message with some descriptors, at most [`MAX_DESCRIPTORS`].
pub(crate) fn send(socket: BorrowedFd<'_>, text: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    if descriptors.len() > MAX_DESCRIPTORS {
        return Err(ErrorKind::InvalidInput.into());
    }
    let numbers: Vec<i32> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    let bytes = u32::try_from(size_of_val(&numbers[..])).map_err(Error::other)?;
    let mut part = libc::iovec {
        iov_base: text.as_ptr().cast_mut().cast(),
        iov_len: text.len(),
    };
    let mut control = [0_u64; CONTROL];
    // SAFETY: msghdr is plain data; zeroes are valid. The control message is written within
    // `control`, which has room for MAX_DESCRIPTORS and is aligned for its header; all that the
    // message points to is live during the call.
    unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if !numbers.is_empty() {
            message.msg_control = control.as_mut_ptr().cast();
            message.msg_controllen = libc::CMSG_SPACE(bytes) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(bytes) as _;
            let to = libc::CMSG_DATA(header).cast::<i32>();
            std::ptr::copy_nonoverlapping(numbers.as_ptr(), to, numbers.len());
        }
        let sent = libc::sendmsg(socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL);
        match usize::try_from(sent) {
            Ok(sent) if sent == text.len() => Ok(()),
            Ok(_) => Err(ErrorKind::WriteZero.into()),
            Err(_) => Err(Error::last_os_error()),
        }
    }
}

/// Receives one message with its descriptors. No bytes: the other end is closed.
///
/// # Errors
/// Also when the message does not fit, or carries too many descriptors.
pub(crate) fn receive(socket: BorrowedFd<'_>, text: &mut [u8]) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut part = libc::iovec {
        iov_base: text.as_mut_ptr().cast(),
        iov_len: text.len(),
    };
    let mut control = [0_u64; CONTROL];
    let mut descriptors = Vec::new();
    // SAFETY: msghdr is plain data; zeroes are valid. All that the message points to is live during
    // the call. The kernel has written whole control messages, and the descriptors in them are new
    // and owned by nothing else.
    unsafe {
        let mut message: libc::msghdr = mem::zeroed();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        message.msg_control = control.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&control) as _;
        let flags = libc::MSG_CMSG_CLOEXEC;
        let length = libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags);
        let Ok(length) = usize::try_from(length) else {
            return Err(Error::last_os_error());
        };
        let mut header = libc::CMSG_FIRSTHDR(&raw const message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let bytes = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let from = libc::CMSG_DATA(header).cast::<i32>();
                for at in 0..bytes / size_of::<i32>() {
                    descriptors.push(OwnedFd::from_raw_fd(from.add(at).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&raw const message, header);
        }
        if message.msg_flags & (libc::MSG_TRUNC | libc::MSG_CTRUNC) != 0 {
            return Err(ErrorKind::InvalidData.into());
        }
        Ok((length, descriptors))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn messages_carry_descriptors_to_the_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("ranks");
        let listener = listen(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(accept(&listener).is_err_and(|error| error.kind() == ErrorKind::WouldBlock));
        let caller = call(&path).unwrap();
        let accepted = accept(&listener).unwrap();
        let pid = std::process::id().cast_signed();
        let uid = own_uid();
        assert_eq!(peer(accepted.as_fd()).unwrap(), Peer { pid, uid });

        let (one, two) = super::super::pair().unwrap();
        send(caller.as_fd(), b"a", &[two.as_fd()]).unwrap();
        send(caller.as_fd(), b"bc", &[]).unwrap();
        let mut text = [0; 8];
        let (length, mut found) = receive(accepted.as_fd(), &mut text).unwrap();
        assert_eq!((length, found.len()), (1, 1));
        drop(two);
        UnixDatagram::from(found.remove(0)).send(b"x").unwrap();
        assert_eq!(one.recv(&mut text).unwrap(), 1);
        let (length, found) = receive(accepted.as_fd(), &mut text).unwrap();
        assert_eq!((&text[..length], found.len()), (&b"bc"[..], 0));

        send(caller.as_fd(), b"123456789", &[]).unwrap();
        assert!(receive(accepted.as_fd(), &mut text).is_err());
        drop(caller);
        assert_eq!(receive(accepted.as_fd(), &mut text).unwrap().0, 0);
    }
}
