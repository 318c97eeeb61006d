//! Standbys: interpreters that are started ahead, import what the attempt before had imported, and
//! wait to go on as the worker of the next attempt.
//!
//! A standby runs the worker's own command, unchanged. Its environment makes Python load a hook
//! before all else (`pod-agent/hook`); there it imports ahead and waits, before the program exists.
//! A release lets Python go on. In the first attempt the hook only notes what is imported.
//!
//! When to start and to use one is decided by the [`Machine`](crate::target::Machine). What is here
//! holds the processes. They are children of the agent, so their PIDs are theirs until they are
//! reaped.

mod calls;
mod command;
mod files;
pub(crate) mod inherited;
mod kinds;
mod memory;
mod process;
mod ranks;
mod warming;
pub(crate) mod wire;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::sys::{self, Interest, Mask, Watched};
use crate::target::{Exit, Input, Standbys as Summary};
use crate::worker;

use files::{Folder, List, Mode};
use process::{Fault, Process, State};
use ranks::{Context, Ranks};

pub(crate) use files::{PYTHONPATH, SHIM, SOCKET};

/// Most modules that are left out. If more would have to be, there are no more standbys.
const MAX_SKIP: usize = 64;
/// Between two looks at the container's memory.
const LOOK: Duration = Duration::from_secs(5);
/// What a standby is expected to need before one has been measured.
const FIRST_GUESS_KIB: u64 = 256 << 10;

/// The standbys of one worker.
#[derive(Debug)]
pub(crate) struct Standbys {
    /// Where the hook is; the reason if there can be no standbys.
    folder: Result<(Folder, List), String>,
    command: Vec<OsString>,
    watched: Option<Watched>,
    /// The worker's: importing, waiting, or released and not confirmed yet.
    process: Option<Process>,
    /// Processes that the worker starts through the agent. None: it starts them itself.
    ranks: Option<Ranks>,
    /// Modules that are not imported ahead.
    skip: Vec<String>,
    /// What the last one that was ready needed, in KiB.
    size_kib: Option<u64>,
    /// Why the last one did not serve.
    reason: String,
    look_at: Option<Duration>,
    /// What was last said of them.
    said: Option<Summary>,
}

/// What a process that was reaped had to do with standbys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// A standby that waited, or still imported.
    Waiting { hopeless: bool },
    /// The released one, before it ran anything of the worker.
    Refused,
    /// The worker, which had been a standby and had not been confirmed in time for this.
    Confirmed,
}

impl Standbys {
    /// Prepares standbys of the worker `command` in `dir`; none: none are asked for.
    pub(crate) fn new(dir: Option<&Path>, command: &[OsString]) -> Self {
        let folder = match dir {
            None => Err(String::new()),
            Some(dir) => prepare(dir, command),
        };
        let watched = folder.is_ok().then(Watched::new).and_then(Result::ok);
        if let Err(reason) = &folder
            && !reason.is_empty()
        {
            worker::say(&format!("no standbys: {reason}"));
        }
        let ranks = match (&folder, &watched) {
            (Ok((folder, _)), Some(watched)) => Ranks::open(folder, watched).ok(),
            _ => None,
        };
        Self {
            ranks,
            reason: folder.as_ref().err().cloned().unwrap_or_default(),
            folder,
            command: command.to_vec(),
            watched,
            process: None,
            skip: Vec::new(),
            size_kib: None,
            look_at: None,
            said: None,
        }
    }

    /// True if there can be standbys.
    pub(crate) fn are_possible(&self) -> bool {
        self.folder.is_ok() && self.watched.is_some()
    }

    /// Makes a worker that starts cold note what it imports.
    pub(crate) fn learn(&self, worker: &mut Command) {
        if let Ok((folder, list)) = &self.folder {
            let before = env::var_os(PYTHONPATH);
            worker.envs(folder.variables(Mode::Run, list, before.as_deref()));
            sys::keep_open(worker, list.fd());
        }
    }

    /// PIDs of the standbys that belong to no attempt yet.
    pub(crate) fn spared(&self) -> impl Iterator<Item = i32> + '_ {
        self.process
            .iter()
            .filter(|process| matches!(process.state, State::Warming | State::Ready(_)))
            .map(|process| process.pid)
            .chain(self.ranks.iter().flat_map(Ranks::spared))
    }

    /// What to wait for.
    pub(crate) fn interest(&self) -> Option<Interest> {
        let watched = self.watched.as_ref();
        let watched = watched.filter(|_| self.process.is_some() || self.ranks.is_some());
        watched.map(|watched| Interest {
            fd: watched.as_raw_fd(),
            write: false,
        })
    }

    /// When [`Standbys::look`] or [`Standbys::serve`] is due.
    pub(crate) fn deadline(&self) -> Option<Duration> {
        let ranks = self.ranks.as_ref().and_then(Ranks::deadline);
        [self.look_at, ranks].into_iter().flatten().min()
    }

    /// The worker is about to be started; nothing is left of the attempt before.
    pub(crate) fn begin(&mut self, now: Duration) {
        if let Some(ranks) = &mut self.ranks {
            ranks.begin(now);
        }
    }

    /// Serves the processes that the worker starts through the agent. `running`: it runs, and is
    /// not being stopped.
    pub(crate) fn serve(&mut self, now: Duration, running: bool) -> Vec<Input> {
        let (Ok((folder, _)), Some(watched), Some(ranks)) = (&self.folder, &self.watched, &mut self.ranks)
        else {
            return Vec::new();
        };
        let state = self.process.as_ref().map(|process| &process.state);
        let inputs = ranks.serve(&Context {
            folder,
            watched,
            now,
            running,
            busy: state == Some(&State::Warming),
        });
        if self.look_at.is_none() && ranks.spared().next().is_some() {
            self.look_at = Some(now + LOOK);
        }
        inputs
    }

    /// Starts the worker's standby.
    pub(crate) fn warm(&mut self, mask: Mask, now: Duration) -> Option<Input> {
        if let Some(ranks) = &mut self.ranks {
            ranks.warm(now);
        }
        if self.process.is_some() {
            return None;
        }
        let needed = 2 * self.size_kib.unwrap_or(FIRST_GUESS_KIB);
        if memory::room_kib().is_some_and(|room| room < needed) {
            self.reason = memory::too_little(needed);
            return Some(Input::StandbyGone { hopeless: false });
        }
        match self.spawn(mask) {
            Ok(process) => {
                self.process = Some(process);
                self.look_at = Some(now + LOOK);
                self.reason.clear();
                None
            }
            Err(error) => {
                self.reason = format!("cannot start a standby: {error}");
                Some(Input::StandbyGone { hopeless: false })
            }
        }
    }

    fn spawn(&self, mask: Mask) -> io::Result<Process> {
        let (Ok((folder, list)), Some(watched), Some((program, args))) =
            (&self.folder, &self.watched, self.command.split_first())
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
        sys::hand_over(&mut command, mask, false);
        for fd in [list.fd(), theirs.as_raw_fd()] {
            sys::keep_open(&mut command, fd);
        }
        watched.watch(ours.as_fd())?;
        let child = command.process_group(0).spawn()?;
        Ok(Process::new(child.id().cast_signed(), ours))
    }

    /// Takes what the standbys have said.
    pub(crate) fn listen(&mut self) -> Option<Input> {
        let process = self.process.as_mut()?;
        let before = process.state.clone();
        process.listen();
        match (before, &process.state) {
            (State::Released, State::Confirmed) => {
                self.process = None;
                Some(Input::Started)
            }
            (before, State::Ready(ready)) if before != process.state => {
                self.size_kib = Some(ready.memory_kib);
                Some(Input::StandbyReady { ahead: ready.ahead })
            }
            _ => None,
        }
    }

    /// Lets the standby go on, with these variables of its attempt (a value, or none to remove it).
    /// Returns its PID: from here on it is a process of the worker. None if there is none, or it is
    /// gone.
    pub(crate) fn release<'a>(
        &mut self,
        variables: impl IntoIterator<Item = (&'a OsStr, Option<&'a OsStr>)>,
    ) -> Option<i32> {
        let process = self.process.as_mut()?;
        if process.release(variables) {
            return Some(process.pid);
        }
        // Its end of the socket is closed: it ends, or is made to.
        let _ = sys::kill(process.pid, libc::SIGKILL);
        None
    }

    /// What a reaped process was, if it was one of these.
    pub(crate) fn reaped(&mut self, pid: i32, exit: Exit) -> Option<Ended> {
        if self.ranks.as_mut().is_some_and(|ranks| ranks.reaped(pid, exit)) {
            return None;
        }
        let mut process = self.process.take_if(|process| process.pid == pid)?;
        let was_released = process.state == State::Released;
        // What it has said may not have been read yet.
        process.listen();
        if was_released && process.state == State::Confirmed {
            return Some(Ended::Confirmed);
        }
        self.look_at = None;
        let mut hopeless = false;
        match process.cause() {
            Some(Fault::Module { name, why }) => {
                self.reason = format!("module {name} is not imported ahead: {why}");
                hopeless =
                    self.skip.len() >= MAX_SKIP || self.skip.contains(&name) || name.contains([',', ';']);
                self.skip.push(name);
            }
            Some(Fault::Other(why)) => self.reason = why,
            // A new one says why, if it cannot be.
            None if was_released => "the standby ended when it was released".clone_into(&mut self.reason),
            None if self.reason.is_empty() => {
                self.reason = match exit {
                    Exit::Code(code) => format!("the standby ended with code {code}"),
                    Exit::Signal(signal) => format!("the standby was killed by signal {signal}"),
                };
            }
            None => {}
        }
        if was_released {
            return Some(Ended::Refused);
        }
        Some(Ended::Waiting { hopeless })
    }

    /// Ends what waits. The processes are reaped as all others.
    pub(crate) fn end(&mut self) {
        if let Some(ranks) = &mut self.ranks {
            ranks.stop();
        }
        for pid in self.spared() {
            let _ = sys::kill(pid, libc::SIGKILL);
        }
    }

    /// Ends the released standby, which does not confirm that it goes on.
    pub(crate) fn give_up(&mut self) {
        if let Some(process) = &self.process {
            let _ = sys::kill(process.pid, libc::SIGKILL);
        }
    }

    /// Ends what waits if the container's memory is short.
    pub(crate) fn look(&mut self, now: Duration) {
        if self.look_at.is_none_or(|at| at > now) {
            return;
        }
        let waits: Vec<i32> = self.spared().collect();
        self.look_at = (self.process.is_some() || !waits.is_empty()).then_some(now + LOOK);
        if let Some(ranks) = &self.ranks {
            ranks.renew_lists();
        }
        for pid in waits {
            let size = memory::resident_kib(pid);
            if memory::room_kib().is_some_and(|room| room < size) {
                "the container's memory is short".clone_into(&mut self.reason);
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
    }

    /// What is to be said of them, if that has changed.
    pub(crate) fn news(&mut self) -> Option<Input> {
        if matches!(&self.folder, Err(reason) if reason.is_empty()) {
            return None;
        }
        let mut summary = Summary {
            wanted: u32::from(self.are_possible()),
            reason: self.reason.clone(),
            ..Summary::default()
        };
        if let Some(State::Ready(ready)) = self.process.as_ref().map(|process| &process.state) {
            summary.ready = 1;
            summary.memory_kib = ready.memory_kib;
            summary.modules = ready.modules;
        }
        if let Some(ranks) = &self.ranks {
            ranks.add_to(&mut summary);
        }
        if self.said.as_ref() == Some(&summary) {
            return None;
        }
        self.said = Some(summary.clone());
        Some(Input::Standbys(summary))
    }
}

/// The variables that make Python, started by `folder`'s shim, note in a list what it imports.
/// `before`: the value of PYTHONPATH.
pub(crate) fn learning(folder: &Path, list: i32, before: Option<&OsStr>) -> [(&'static str, OsString); 2] {
    files::variables(folder, Mode::Run, list, before)
}

fn prepare(dir: &Path, command: &[OsString]) -> Result<(Folder, List), String> {
    let path = env::var_os("PATH").unwrap_or_default();
    command::recognise(command, &path).map_err(|error| error.to_string())?;
    if io::IsTerminal::is_terminal(&io::stdin()) {
        return Err("the worker reads a terminal".to_owned());
    }
    let refused = |error: io::Error| format!("cannot write to {}: {error}", dir.display());
    let folder = Folder::create(dir).map_err(refused)?;
    let list = List::new().map_err(|error| format!("cannot share memory: {error}"))?;
    Ok((folder, list))
}
