//! Standbys: processes that are started ahead, and wait to go on as the worker of the next attempt.
//!
//! A standby runs the worker's own command, unchanged, and waits in one of several
//! [ways](way::Way). With `python`, the environment makes Python load a hook before all else
//! (`pod-agent/hook`). The hook imports ahead and waits, before the program begins; a release lets
//! Python go on. In the first attempt the hook only notes what is imported. With `program`, the
//! [program] parks itself at a point of its choice.
//!
//! The [`Machine`](crate::machine::Machine) decides when to start a standby and when to use it.
//! This module holds the processes. They are children of the agent, so they keep their PIDs until
//! they are reaped.

mod calls;
mod command;
mod ended;
mod family;
mod files;
pub(crate) mod inherited;
mod kinds;
mod log;
mod look;
mod memory;
pub(crate) mod names;
mod own;
mod process;
mod program;
mod ranks;
mod reason;
mod release;
mod skip;
mod summary;
mod warming;
mod way;
pub(crate) mod wire;

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::machine::{Exit, Input, Standbys as Summary};
use crate::sys::{self, Interest, Mask, Watched};
use crate::worker;

use files::Mode;
use log::Log;
use memory::Memory;
use process::{Process, State};
use program::Program;
use ranks::{Context, Ranks};
use skip::Skip;
use way::Way;

pub(crate) use ended::Ended;
pub(crate) use files::{PYTHONPATH, SHIM, SOCKET};

/// Time between two checks of the container's memory.
const LOOK: Duration = Duration::from_secs(5);
/// The most memory, in KiB, that a standby is expected to need before one has been measured. Below
/// that, the worker's own memory is the estimate, which includes more than its imports.
const FIRST_GUESS_KIB: u64 = 512 << 10;
/// Why there is no standby after [`Standbys::end`].
const ENDED: &str = "all processes of the container are being ended";

/// The standbys of one worker.
#[derive(Debug)]
pub(crate) struct Standbys {
    way: Way,
    command: Vec<OsString>,
    memory: Memory,
    watched: Option<Watched>,
    /// The worker's own standby: importing, waiting, or released and not confirmed yet.
    process: Option<Process>,
    /// Processes that the worker starts through the agent. `None` if it starts them itself.
    ranks: Option<Ranks>,
    /// Modules that are not imported ahead.
    skip: Skip,
    /// Set once another standby would fail like the last one.
    hopeless: bool,
    /// Memory of the last standby that was ready, in KiB.
    size_kib: Option<u64>,
    /// Why the last standby was of no use.
    reason: String,
    look_at: Option<Duration>,
    log: Log,
    /// The last summary that was reported.
    reported: Option<Summary>,
}

impl Standbys {
    /// Prepares standbys of the worker `command` in `dir`. Without `dir`, none are asked for.
    pub(crate) fn new(dir: Option<&Path>, command: &[OsString]) -> Self {
        let prepared = dir.map(|dir| own::prepare(dir, command));
        let way = match prepared {
            None => Way::Nothing(String::new()),
            Some(Err(reason)) => Way::Nothing(reason),
            Some(Ok(way)) => way,
        };
        Self::by(way, command)
    }

    fn by(way: Way, command: &[OsString]) -> Self {
        let watched = way.is_possible().then(Watched::new).and_then(Result::ok);
        if let Way::Nothing(reason) = &way
            && !reason.is_empty()
        {
            worker::say(&format!("no standbys: {reason}"));
        }
        let mut reason = way.first_reason();
        let ranks = match (way.folder(), &watched) {
            (Some(folder), Some(watched)) => Ranks::open(folder, watched)
                .inspect_err(|error| {
                    let why = format!("calls of ranks cannot be taken: {error}");
                    worker::say(&format!("no standbys of ranks: {why}"));
                    if way.wrapper().is_some() {
                        reason = why;
                    }
                })
                .ok(),
            _ => None,
        };
        Self {
            ranks,
            reason,
            way,
            command: command.to_vec(),
            memory: Memory::own(),
            watched,
            process: None,
            skip: Skip::default(),
            hopeless: false,
            size_kib: None,
            look_at: None,
            log: Log::default(),
            reported: None,
        }
    }

    /// True if the worker itself can have a standby.
    pub(crate) fn are_possible(&self) -> bool {
        self.way.is_possible() && !self.are_of_ranks() && self.watched.is_some() && !self.hopeless
    }

    /// True if only Python that the worker starts can have standbys, not the worker itself.
    pub(crate) fn are_of_ranks(&self) -> bool {
        self.way.wrapper().is_some()
    }

    /// Prepares a worker that starts cold: it notes its imports, starts Python through the agent,
    /// or tells the agent when it parks.
    pub(crate) fn learn(&mut self, worker: &mut Command) {
        match (&mut self.way, &self.watched) {
            (Way::Hook(folder, list), _) => {
                let before = env::var_os(PYTHONPATH);
                worker.envs(folder.variables(Mode::Run, list, before.as_deref()));
                sys::keep_open(worker, list.fd());
            }
            (Way::Wrapper(_, wrapper), _) if self.ranks.is_some() => {
                worker.env("PATH", &wrapper.path);
            }
            (Way::Program(program), Some(watched)) => program.learn(worker, watched),
            (Way::Program(_), None) | (Way::Wrapper(..) | Way::Nothing(_), _) => {}
        }
    }

    /// The worker has been started cold, and has this PID.
    pub(crate) fn runs(&mut self, pid: i32) {
        if let Some(program) = self.way.program_mut() {
            program.runs(pid);
        }
    }

    /// PIDs of the standbys that belong to no attempt yet.
    pub(crate) fn spared(&self) -> impl Iterator<Item = i32> + '_ {
        let own = self.waiting().map(|process| process.pid);
        own.into_iter().chain(self.ranks.iter().flat_map(Ranks::spared))
    }

    /// The process that a signal to this one is meant for: its rank, if this one is a stand-in.
    pub(crate) fn behind(&self, pid: i32) -> i32 {
        self.ranks.as_ref().map_or(pid, |ranks| ranks.behind(pid))
    }

    /// The descriptors to wait for.
    pub(crate) fn interest(&self) -> Option<Interest> {
        let speaks = self.process.as_ref().is_some_and(|process| !process.closed);
        let awaited = self.way.program().is_some_and(Program::awaits_worker);
        let speaks = speaks || awaited || self.ranks.is_some();
        let watched = self.watched.as_ref().filter(|_| speaks);
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

    /// The worker is about to be started, and nothing is left of the previous attempt.
    pub(crate) fn begin(&mut self, now: Duration) {
        if let Some(ranks) = &mut self.ranks {
            ranks.begin(now);
        }
        if let Some(program) = self.way.program_mut() {
            program.begin(now);
        }
        if let Some((_, list)) = self.way.hook() {
            list.forget();
        }
    }

    /// Serves the processes that the worker starts through the agent. `running` is true while the
    /// worker runs and is not being stopped, `beats` unless its first heartbeat is missing.
    pub(crate) fn serve(&mut self, now: Duration, running: bool, beats: bool) -> Vec<Input> {
        let (Some(folder), Some(watched), Some(ranks)) = (self.way.folder(), &self.watched, &mut self.ranks)
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
            beats,
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
        match self.start(worker, mask, now) {
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

    /// Reads the messages of the standbys.
    pub(crate) fn listen(&mut self, now: Duration) -> Option<Input> {
        self.hear_worker(now);
        let process = self.process.as_mut()?;
        let before = process.state.clone();
        process.listen();
        if before == State::Released && process.state == State::Confirmed {
            self.process = None;
            return Some(Input::Started);
        }
        if process.closed {
            // It has ended, or takes no messages any more.
            process.kill();
        }
        if let State::Ready(ready) = process.state
            && before != process.state
        {
            self.size_kib = Some(ready.memory_kib);
            if before == State::Warming {
                Log::ready(&ready, process.parks);
            }
            if let Some(program) = self.way.program_mut() {
                program.standby_waits();
            }
            return Some(Input::StandbyReady { ahead: ready.ahead });
        }
        None
    }

    /// Releases the standby, with these variables of its attempt (a value, or `None` to remove the
    /// variable). Returns its PID: from here on it is a process of the worker. Returns `None` if
    /// there is no standby, or it has gone.
    pub(crate) fn release<'a>(
        &mut self,
        variables: impl IntoIterator<Item = (&'a OsStr, Option<&'a OsStr>)>,
    ) -> Option<i32> {
        let process = self.process.as_mut()?;
        process.listen();
        let program = self.way.program_mut();
        if program
            .as_ref()
            .is_some_and(|program| !program.prepare_release(process))
        {
            self.reason = reason::of_refusal("oom_score_adj");
        } else if process.importing().is_none() && process.release(variables) {
            // A standby that imports more just now would go on only after that, later than a cold
            // start.
            if let Some(program) = program {
                program.standby_goes_on();
            }
            return Some(process.pid);
        }
        // Otherwise its end of the socket is closed: it ends, or the agent ends it.
        process.kill();
        None
    }

    /// Ends the waiting standbys. They are reaped like all other processes.
    pub(crate) fn end(&mut self) {
        if let Some(ranks) = &mut self.ranks {
            ranks.end();
        }
        if let Some(process) = self.waiting() {
            process.kill();
            ENDED.clone_into(&mut self.reason);
        }
    }

    /// Ends the released standby, which does not confirm that it goes on. If it has confirmed, and
    /// the agent has not read that yet, returns the confirmation instead: the agent itself may have
    /// been stopped for a while.
    pub(crate) fn give_up(&mut self) -> Option<Input> {
        let process = self.process.as_mut()?;
        if process.close_ears() {
            self.process = None;
            return Some(Input::Started);
        }
        "the standby did not go on in time".clone_into(&mut self.reason);
        process.kill();
        None
    }

    /// The standby that belongs to no attempt yet.
    fn waiting(&self) -> Option<&Process> {
        let waits = |process: &&Process| matches!(process.state, State::Warming | State::Ready(_));
        self.process.as_ref().filter(waits)
    }
}

/// The variables that make Python, started by `folder`'s shim, note its imports in a list. `before`
/// is the value of PYTHONPATH.
pub(crate) fn learning(folder: &Path, list: i32, before: Option<&OsStr>) -> [(&'static str, OsString); 2] {
    files::variables(folder, Mode::Run, list, before)
}

/// True for signals that other processes send. A process's own faults raise others.
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
