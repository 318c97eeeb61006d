//! System calls of a process that stands in for another.

use std::ffi::{CStr, OsStr};
use std::fs::OpenOptions;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use super::{Mask, check, kill};

impl Mask {
    /// The mask that blocks nothing.
    pub(crate) fn none() -> Self {
        let mut set = MaybeUninit::<libc::sigset_t>::uninit();
        // SAFETY: sigemptyset initialises `set`, and cannot fail.
        unsafe {
            libc::sigemptyset(set.as_mut_ptr());
            Self(set.assume_init())
        }
    }
}

/// The path by which the kernel found this program: it is not what the caller says in `argv[0]`.
pub(crate) fn called() -> Option<PathBuf> {
    // SAFETY: the kernel puts a string that ends with zero there, or the answer is zero; it lives
    // as long as the process.
    let path = unsafe {
        let address = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        (!address.is_null()).then(|| CStr::from_ptr(address))
    };
    path.map(|path| OsStr::from_bytes(path.to_bytes()).into())
}

/// Lets the command inherit no descriptor of this process but the standard streams, and those that
/// it is told to keep after this.
pub(crate) fn close_others(command: &mut Command) {
    let close = || {
        // SAFETY: called between fork and exec: one async-signal-safe call. Before Linux 5.11 it
        // does nothing; then the command has what the container's first process was given.
        let _ = unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, libc::CLOSE_RANGE_CLOEXEC) };
        Ok(())
    };
    // SAFETY: the closure keeps to what is allowed between fork and exec, see above.
    unsafe { command.pre_exec(close) };
}

/// Lets go of the standard streams, so that a pipe ends with the process that this one stands for.
pub(crate) fn let_go_of_streams() {
    if let Ok(null) = OpenOptions::new().read(true).write(true).open("/dev/null") {
        for stream in 0..=2 {
            // SAFETY: no memory is involved. Std holds these numbers as what they are: the standard
            // streams.
            unsafe { libc::dup2(null.as_raw_fd(), stream) };
        }
    }
}

/// The execution domain of this process.
pub(crate) fn personality() -> i32 {
    // SAFETY: it takes no memory. This value asks, and changes nothing.
    unsafe { libc::personality(0xffff_ffff) }
}

/// The I/O priority of this process, as `ioprio_get(2)` has it; 0 if it has none of its own.
pub(crate) fn io_priority() -> Option<libc::c_long> {
    const PROCESS: libc::c_long = 1;
    const CLASS: u32 = 13;
    // SAFETY: no memory is involved.
    let found = unsafe { libc::syscall(libc::SYS_ioprio_get, PROCESS, 0) };
    // Without a class the level says nothing, and depends on what the process has read.
    (found >= 0).then_some(if found >> CLASS == 0 { 0 } else { found })
}

/// The NUMA policy of this process: its mode, and nodes. None if the kernel does not tell.
pub(crate) fn memory_policy() -> Option<(i32, Vec<u64>)> {
    /// As many nodes as a kernel can have.
    const NODES: usize = 1024;
    let mut mode = 0;
    let mut nodes = vec![0_u64; NODES / 64];
    // SAFETY: `mode` and `nodes` are live during the call, and `nodes` has that many bits.
    let found = unsafe {
        let nodes = nodes.as_mut_ptr();
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            nodes,
            NODES,
            0_usize,
            0_usize,
        )
    };
    (found == 0).then_some((mode, nodes))
}

/// True if this process leads its process group: a launcher may signal it as such.
pub(crate) fn leads_group() -> bool {
    // SAFETY: no memory is involved.
    unsafe { libc::getpgrp() == libc::getpid() }
}

/// Ends this process by a signal, without a core dump. Returns if that does not end it.
pub(crate) fn die_of(signal: i32) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: `none` and `set` are live during the calls; sigemptyset initialises `set`.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(signal, libc::SIG_DFL);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        let _ = kill(libc::getpid(), signal);
        let _ = check(libc::sigprocmask(
            libc::SIG_UNBLOCK,
            &raw const set,
            std::ptr::null_mut(),
        ));
    }
}
