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
mod log;
mod look;
mod memory;
pub(crate) mod names;
mod own;
mod process;
mod ranks;
mod reason;
mod warming;
pub(crate) mod wire;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::sys::{self, Interest, Mask, Watched};
use crate::target::{Exit, Input, Standbys as Summary};
use crate::worker;

use files::Mode;
use log::Log;
use memory::Memory;
use process::{Fault, Process, State};
use ranks::{Context, Ranks};

pub(crate) use files::{PYTHONPATH, SHIM, SOCKET};

/// Most modules that are left out. If more would have to be, there are no more standbys.
const MAX_SKIP: usize = 64;
/// How long the import of one module may take.
const LONGEST_IMPORT: Duration = Duration::from_secs(900);
/// Between two looks at the container's memory.
const LOOK: Duration = Duration::from_secs(5);
/// What a standby is expected to need before one has been measured: what the worker has, which
/// holds more than what it has imported, but not more than this.
const FIRST_GUESS_KIB: u64 = 512 << 10;
/// Why there is none after [`Standbys::end`].
const ENDED: &str = "all processes of the container are being ended";

/// The standbys of one worker.
#[derive(Debug)]
pub(crate) struct Standbys {
    /// Where the hook is; the reason if there can be no standbys.
    folder: Result<own::Prepared, String>,
    command: Vec<OsString>,
    memory: Memory,
    watched: Option<Watched>,
    /// The worker's: importing, waiting, or released and not confirmed yet.
    process: Option<Process>,
    /// Processes that the worker starts through the agent. None: it starts them itself.
    ranks: Option<Ranks>,
    /// Modules that are not imported ahead.
    skip: Vec<String>,
    /// Set once another one would fare no better than the last.
    hopeless: bool,
    /// What the last one that was ready needed, in KiB.
    size_kib: Option<u64>,
    /// Why the last one did not serve.
    reason: String,
    look_at: Option<Duration>,
    /// The module that was being imported at the last look, and since when.
    importing: Option<(String, Duration)>,
    log: Log,
    /// What was last reported of them.
    reported: Option<Summary>,
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
            Some(dir) => own::prepare(dir, command),
        };
        let watched = folder.is_ok().then(Watched::new).and_then(Result::ok);
        if let Err(reason) = &folder
            && !reason.is_empty()
        {
            worker::say(&format!("no standbys: {reason}"));
        }
        let ranks = match (&folder, &watched) {
            (Ok((folder, ..)), Some(watched)) => Ranks::open(folder, watched).ok(),
            _ => None,
        };
        Self {
            ranks,
            reason: folder.as_ref().err().cloned().unwrap_or_default(),
            folder,
            command: command.to_vec(),
            memory: Memory::own(),
            watched,
            process: None,
            skip: Vec::new(),
            hopeless: false,
            size_kib: None,
            look_at: None,
            importing: None,
            log: Log::default(),
            reported: None,
        }
    }

    /// True if there can be one of the worker itself.
    pub(crate) fn are_possible(&self) -> bool {
        matches!(&self.folder, Ok((.., None))) && self.watched.is_some() && !self.hopeless
    }

    /// True if there can be some of Python that the worker starts, and none of the worker itself.
    pub(crate) fn are_of_ranks(&self) -> bool {
        matches!(&self.folder, Ok((.., Some(_)))) && self.ranks.is_some()
    }

    /// Makes a worker that starts cold note what it imports, or start Python through the agent.
    pub(crate) fn learn(&self, worker: &mut Command) {
        match &self.folder {
            Ok((folder, list, None)) => {
                let before = env::var_os(PYTHONPATH);
                worker.envs(folder.variables(Mode::Run, list, before.as_deref()));
                sys::keep_open(worker, list.fd());
            }
            Ok((.., Some(wrapper))) if self.ranks.is_some() => {
                worker.env("PATH", &wrapper.path);
            }
            Ok(_) | Err(_) => {}
        }
    }

    /// PIDs of the standbys that belong to no attempt yet.
    pub(crate) fn spared(&self) -> impl Iterator<Item = i32> + '_ {
        let own = self.waiting().map(|process| process.pid);
        own.into_iter().chain(self.ranks.iter().flat_map(Ranks::spared))
    }

    /// What to wait for.
    pub(crate) fn interest(&self) -> Option<Interest> {
        let speaks = self.process.as_ref().is_some_and(|process| !process.closed);
        let watched = self.watched.as_ref().filter(|_| speaks || self.ranks.is_some());
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
        let (Ok((folder, ..)), Some(watched), Some(ranks)) = (&self.folder, &self.watched, &mut self.ranks)
        else {
            return Vec::new();
        };
        let state = self.process.as_ref().map(|process| &process.state);
        let inputs = ranks.serve(&Context {
            folder,
            watched,
            memory: &self.memory,
            now,
            running,
            busy: state == Some(&State::Warming),
        });
        if self.look_at.is_none() && ranks.spared().next().is_some() {
            self.look_at = Some(now + LOOK);
        }
        inputs
    }

    /// Starts the standby of the worker with this PID.
    pub(crate) fn warm(&mut self, worker: Option<i32>, mask: Mask, now: Duration) -> Option<Input> {
        if let Some(ranks) = &mut self.ranks {
            ranks.warm(now);
        }
        if self.process.is_some() || self.are_of_ranks() {
            return None;
        }
        if self.hopeless {
            return Some(Input::StandbyGone { hopeless: true });
        }
        match self.may_warm(worker).and_then(|()| self.spawn(mask)) {
            Ok(process) => {
                self.process = Some(process);
                self.look_at = Some(now + LOOK);
                self.reason.clear();
                None
            }
            Err(reason) => {
                self.log.failed(&reason);
                self.reason = reason;
                Some(Input::StandbyGone { hopeless: false })
            }
        }
    }

    /// Takes what the standbys have said.
    pub(crate) fn listen(&mut self) -> Option<Input> {
        let process = self.process.as_mut()?;
        let before = process.state.clone();
        process.listen();
        if before == State::Released && process.state == State::Confirmed {
            self.process = None;
            return Some(Input::Started);
        }
        if process.closed {
            // It has ended, or can be told nothing any more.
            process.kill();
        }
        if let State::Ready(ready) = process.state
            && before != process.state
        {
            self.size_kib = Some(ready.memory_kib);
            if before == State::Warming {
                Log::ready(&ready);
            }
            return Some(Input::StandbyReady { ahead: ready.ahead });
        }
        None
    }

    /// Lets the standby go on, with these variables of its attempt (a value, or none to remove it).
    /// Returns its PID: from here on it is a process of the worker. None if there is none, or it is
    /// gone.
    pub(crate) fn release<'a>(
        &mut self,
        variables: impl IntoIterator<Item = (&'a OsStr, Option<&'a OsStr>)>,
    ) -> Option<i32> {
        let process = self.process.as_mut()?;
        process.listen();
        // One that imports more just now would go on only after that, later than a cold start.
        if process.importing().is_none() && process.release(variables) {
            return Some(process.pid);
        }
        // Else its end of the socket is closed: it ends, or is made to.
        process.kill();
        None
    }

    /// What a reaped process was, if it was one of these.
    pub(crate) fn reaped(&mut self, pid: i32, exit: Exit) -> Option<Ended> {
        if self.ranks.as_mut().is_some_and(|ranks| ranks.reaped(pid, exit)) {
            return None;
        }
        let mut process = self.process.take_if(|process| process.pid == pid)?;
        let was_released = process.state == State::Released;
        process.hear_out();
        if was_released && process.state == State::Confirmed {
            return Some(Ended::Confirmed);
        }
        // What it has started does not outlive it. Its PID is not used again so soon.
        process.kill_group();
        self.look_at = None;
        match process.cause(is_sent(exit)) {
            Some(fault) => {
                if let Fault::Module { name, .. } = &fault {
                    self.leave_out(name.clone());
                }
                self.reason = fault.told();
            }
            // Known already, as when memory is short.
            None if !self.reason.is_empty() => {}
            None => {
                let when = if was_released { " when it was released" } else { "" };
                self.reason = match exit {
                    Exit::Code(code) => format!("the standby ended with code {code}{when}"),
                    Exit::Signal(signal) => format!("the standby was killed by signal {signal}{when}"),
                };
            }
        }
        if self.reason != ENDED {
            self.log.failed(&self.reason);
        }
        if was_released {
            return Some(Ended::Refused);
        }
        let hopeless = self.hopeless;
        Some(Ended::Waiting { hopeless })
    }

    /// The next standbys do not import this module ahead.
    fn leave_out(&mut self, name: String) {
        let in_vain = self.skip.contains(&name) || name.is_empty() || name.contains([',', ';']);
        self.hopeless |= in_vain || self.skip.len() >= MAX_SKIP;
        self.skip.push(name);
    }

    /// Ends what waits. The processes are reaped as all others.
    pub(crate) fn end(&mut self) {
        if let Some(ranks) = &mut self.ranks {
            ranks.end();
        }
        if let Some(process) = self.waiting() {
            process.kill();
            ENDED.clone_into(&mut self.reason);
        }
    }

    /// Ends the released standby, which does not confirm that it goes on. If it has, and that was
    /// not read yet, returns that instead: the agent itself may have been stopped for a while.
    pub(crate) fn give_up(&mut self) -> Option<Input> {
        let process = self.process.as_mut()?;
        process.hear_out();
        if process.state == State::Confirmed {
            self.process = None;
            return Some(Input::Started);
        }
        // If it says so between these lines, the kill counts as the worker's failure.
        "the standby did not go on in time".clone_into(&mut self.reason);
        process.kill();
        None
    }

    /// The standby that belongs to no attempt yet.
    fn waiting(&self) -> Option<&Process> {
        let waits = |process: &&Process| matches!(process.state, State::Warming | State::Ready(_));
        self.process.as_ref().filter(waits)
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
        if let Ok((.., Some(wrapper))) = &self.folder
            && summary.wanted == 0
            && summary.reason.is_empty()
        {
            summary.reason = format!("{} has not started Python by its name", wrapper.name);
        }
        if self.reported.as_ref() == Some(&summary) {
            return None;
        }
        self.reported = Some(summary.clone());
        Some(Input::Standbys(summary))
    }
}

/// The variables that make Python, started by `folder`'s shim, note in a list what it imports.
/// `before`: the value of PYTHONPATH.
pub(crate) fn learning(folder: &Path, list: i32, before: Option<&OsStr>) -> [(&'static str, OsString); 2] {
    files::variables(folder, Mode::Run, list, before)
}

/// True for signals that other processes send. Faults of its own raise others.
fn is_sent(exit: Exit) -> bool {
    let sent = [
        libc::SIGKILL,
        libc::SIGTERM,
        libc::SIGINT,
        libc::SIGHUP,
        libc::SIGQUIT,
    ];
    matches!(exit, Exit::Signal(signal) if sent.contains(&signal))
}

#[cfg(test)]
mod tests;
