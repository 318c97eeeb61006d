//! The worker's own standby: whether there can be one, and how it is started.

use std::env;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::Command;

use super::command::{self, NotPython};
use super::files::{Folder, List, Mode, PYTHONPATH};
use super::memory::resident_kib;
use super::names::{self, Wrapper};
use super::process::Process;
use super::way::Way;
use super::{FIRST_GUESS_KIB, Standbys};
use crate::sys::{self, Mask};
use crate::worker;

/// How a worker can have standbys with the hook in `dir`, or why it cannot.
pub(super) fn prepare(dir: &Path, command: &[OsString]) -> Result<Way, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let wrapper = match command::recognise(command, &path) {
        Ok(()) => None,
        Err(NotPython::Other(name)) => Some(name),
        Err(error) => return Err(error.to_string()),
    };
    if io::IsTerminal::is_terminal(&io::stdin()) {
        return Err("the worker reads a terminal".to_owned());
    }
    let refused = |error: io::Error| format!("cannot write to {}: {error}", dir.display());
    let folder = Folder::create(dir).map_err(refused)?;
    let Some(name) = wrapper else {
        let list = List::new().map_err(|error| format!("cannot share memory: {error}"))?;
        return Ok(Way::Hook(folder, list));
    };
    match names::create(folder.path(), &path).map_err(refused)? {
        Some(path) => Ok(Way::Wrapper(folder, Wrapper { name, path })),
        None => Err(NotPython::Other(name).to_string()),
    }
}

impl Standbys {
    /// Says why no standby can be started now.
    pub(super) fn may_warm(&self, worker: Option<i32>) -> Result<(), String> {
        // An interpreter that does not load the hook would run the program at once.
        let path = env::var_os("PATH").unwrap_or_default();
        command::recognise(&self.command, &path).map_err(|error| error.to_string())?;
        if !self.way.hook().is_some_and(|(_, list)| list.is_begun()) {
            return Err("the program has not loaded the hook for standbys".to_owned());
        }
        let guess = || worker.map_or(FIRST_GUESS_KIB, resident_kib).min(FIRST_GUESS_KIB);
        self.memory.may_take(self.size_kib.unwrap_or_else(guess))
    }

    pub(super) fn spawn(&self, mask: Mask) -> Result<Process, String> {
        self.try_spawn(mask)
            .map_err(|error| format!("cannot start a standby: {error}"))
    }

    fn try_spawn(&self, mask: Mask) -> io::Result<Process> {
        let (Some((folder, list)), Some(watched), Some((program, args))) =
            (self.way.hook(), &self.watched, self.command.split_first())
        else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let (ours, theirs) = sys::pair()?;
        let mode = Mode::Wait {
            socket: theirs.as_raw_fd(),
            skip: &self.skip,
        };
        let before = env::var_os(PYTHONPATH);
        let mut command = Command::new(program);
        command
            .args(args)
            .envs(folder.variables(mode, list, before.as_deref()))
            .env_remove(worker::HEARTBEAT);
        let kept = [list.fd(), theirs.as_raw_fd()];
        Process::spawn(command, mask, &kept, ours, watched)
    }
}
