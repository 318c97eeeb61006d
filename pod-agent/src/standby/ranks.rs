//! Ranks: processes that the worker, a launcher such as torchrun, starts through the agent, and
//! their standbys.
//!
//! The hook makes torchrun start ranks through a program in the hook's folder: the agent's own
//! binary, under the name `python`. This program calls the agent. If a standby is ready, the
//! standby becomes the rank, as a child of the agent, and the caller stands in for it. Otherwise
//! the caller becomes the rank itself, as without the agent.
//!
//! It promises:
//! - A call is answered by one release at most. If a standby was released for it, the caller runs
//!   the program itself only once that standby has ended without running anything of it.
//! - If a caller hangs up, its rank is killed. No call is answered before that rank has ended.
//! - Nothing is released while the worker is being stopped, or for a caller that has gone.

use std::env;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixDatagram, UnixListener};
use std::rc::Rc;
use std::time::Duration;

use crate::machine::calls::{RankRelease, RankStandby};
use crate::machine::{Exit, Input, Source};
use crate::sys::{self, Watched};

use super::ENDED;
use super::ended;
use super::family::Usage;
use super::files::{Folder, List, SHIM, SOCKET};
use super::is_sent;
use super::kinds::{Kinds, MAX_RANKS};
use super::log::Log;
use super::memory::{Memory, SHORT};
use super::process::{Fault, Process, State};
use super::wire::{Call, Environment};

/// How long an attempt runs before the kinds that it has not used are dropped. A later first
/// heartbeat of the worker prolongs it.
const RANK_SETTLED: Duration = Duration::from_secs(30);

/// The ranks of one worker, and their standbys.
#[derive(Debug)]
pub(super) struct Ranks {
    pub(super) listener: UnixListener,
    pub(super) kinds: Kinds,
    pub(super) waiting: Vec<Waiting>,
    pub(super) callers: Vec<Caller>,
    /// Ranks that were started without a standby.
    pub(super) cold: Vec<Cold>,
    /// Ranks that were killed since their callers had gone, until they are reaped.
    pub(super) dying: Vec<i32>,
    /// Until when no calls are taken, since one could not be.
    pub(super) deaf_until: Option<Duration>,
    /// Number of the last call.
    pub(super) number: u64,
    /// Inputs that the machine has not received yet.
    pub(super) inputs: Vec<Input>,
    /// Why the last standby was of no use.
    pub(super) reason: String,
    log: Log,
    pub(super) now: Duration,
    /// Since when standbys may be started in this attempt.
    pub(super) warmed: Option<Duration>,
    /// When the attempt has started all of its ranks.
    pub(super) settles: Option<Duration>,
    /// When [`Ranks::serve`] is due at the latest.
    wake: Option<Duration>,
}

/// A standby of a rank.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) kind: u32,
    pub(super) process: Process,
    /// The variables that it was started with.
    pub(super) environment: Rc<Environment>,
    /// Its own list of modules. Only one standby of a kind has the list of the kind, and adds to it
    /// as a rank.
    pub(super) list: Option<List>,
    pub(super) since: Duration,
    /// How many modules it was to leave out.
    pub(super) skipped: usize,
    /// The agent ends it, and why is said already.
    pub(super) ended: bool,
}

impl Waiting {
    pub(super) fn stage(&self) -> RankStandby {
        match self.process.state {
            _ if self.ended => RankStandby::Ending,
            State::Ready(_) if self.process.importing().is_none() => RankStandby::Ready,
            _ => RankStandby::Imports,
        }
    }

    /// Ends it. It is reaped as all others.
    pub(super) fn end(&mut self) {
        self.process.kill();
        self.ended = true;
    }
}

/// A process that stands in for a rank, or is about to become it.
#[derive(Debug)]
pub(super) struct Caller {
    pub(super) number: u64,
    pub(super) socket: UnixDatagram,
    pub(super) pid: i32,
    pub(super) stage: Stage,
}

#[derive(Debug)]
pub(super) enum Stage {
    /// It has not sent its call yet. The deadline for that.
    Open(Duration),
    /// Its call waits for an answer.
    Called(Box<Called>),
    Releasing(Box<Release>),
    /// It will become a rank of this kind itself.
    Refused(u32),
    /// It stands in for this process.
    Running {
        kind: u32,
        pid: i32,
        leads: bool,
        _list: Option<List>,
    },
    Over,
}

/// What a caller wants, and its standard streams.
#[derive(Debug)]
pub(super) struct Called {
    pub(super) call: Call,
    pub(super) streams: Vec<OwnedFd>,
}

/// A standby that has been told to go on.
#[derive(Debug)]
pub(super) struct Release {
    pub(super) kind: u32,
    pub(super) process: Process,
    pub(super) leads: bool,
    pub(super) list: Option<List>,
    pub(super) ahead: Duration,
    /// How many modules it was to leave out.
    pub(super) skipped: usize,
    pub(super) going: RankRelease,
}

/// A rank that is no child of the agent.
#[derive(Debug)]
pub(super) struct Cold {
    pub(super) number: u64,
    pub(super) kind: u32,
    /// Valid while the process has not ended.
    pub(super) pid: i32,
    pub(super) process: OwnedFd,
}

/// What ranks share with the worker's own standby.
#[derive(Debug)]
pub(super) struct Context<'a> {
    pub(super) folder: &'a Folder,
    pub(super) watched: &'a Watched,
    pub(super) memory: &'a Memory,
    pub(super) now: Duration,
    /// The worker runs, and is not being stopped.
    pub(super) running: bool,
    /// Its first heartbeat is not missing.
    pub(super) beats: bool,
    /// The worker's own standby imports.
    pub(super) busy: bool,
}

impl Ranks {
    /// Makes the hook start ranks through the agent.
    pub(super) fn open(folder: &Folder, watched: &Watched) -> io::Result<Self> {
        let (shim, socket) = (folder.path().join(SHIM), folder.path().join(SOCKET));
        for old in [&shim, &socket] {
            match fs::remove_file(old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        let listener = sys::listen(&socket)?;
        watched.watch(listener.as_fd())?;
        symlink(env::current_exe()?, &shim)?;
        Ok(Self {
            listener,
            kinds: Kinds::default(),
            waiting: Vec::new(),
            callers: Vec::new(),
            cold: Vec::new(),
            dying: Vec::new(),
            deaf_until: None,
            number: 0,
            inputs: Vec::new(),
            reason: String::new(),
            log: Log::default(),
            now: Duration::ZERO,
            warmed: None,
            settles: None,
            wake: None,
        })
    }

    /// An attempt begins, and nothing is left of the previous one.
    pub(super) fn begin(&mut self, now: Duration) {
        self.kinds.begin();
        self.callers.clear();
        self.cold.clear();
        self.dying.clear();
        // What the attempt before has started is not counted in this one.
        self.inputs.clear();
        self.warmed = None;
        self.settles = Some(now + RANK_SETTLED);
        self.wake = self.settles;
    }

    /// Standbys for the next attempt may be started.
    pub(super) fn warm(&mut self, now: Duration) {
        self.warmed.get_or_insert(now);
    }

    /// Ends the waiting standbys. No more are started in this attempt.
    pub(super) fn end(&mut self) {
        (self.warmed, self.settles) = (None, None);
        for waiting in &mut self.waiting {
            waiting.end();
            ENDED.clone_into(&mut self.reason);
        }
    }

    /// A standby of a kind has not become a rank, because of this fault, or `otherwise`. `skipped`
    /// is the number of modules that it was to leave out.
    pub(super) fn failed(&mut self, kind: u32, fault: Option<Fault>, skipped: usize, otherwise: String) {
        self.kinds.failed(kind, self.now);
        if let Some(Fault::Module { name, .. }) = &fault {
            self.kinds.leave_out(kind, name, skipped);
        }
        self.explain(fault.map_or(otherwise, Fault::told));
    }

    /// Reports why a standby is of no use.
    pub(super) fn explain(&mut self, reason: String) {
        self.log.failed(&reason);
        self.reason = reason;
    }

    /// Ends waiting standbys if the container's memory is short or an import does not end, and
    /// passes on new imports.
    pub(super) fn tend(&mut self, memory: &Memory, now: Duration) {
        self.renew_lists();
        for waiting in &mut self.waiting {
            waiting.process.look_at_import(now);
        }
        for waiting in &mut self.waiting {
            let size = Usage::of(waiting.process.pid).memory_kib;
            if !waiting.ended && memory.is_short_beside(size) {
                waiting.end();
                self.kinds.failed(waiting.kind, now);
                if let Some(kind) = self.kinds.get(waiting.kind) {
                    // A standby that still imported would have needed more.
                    kind.size_kib = kind.size_kib.max(Some(size.saturating_mul(2)));
                }
                self.explain(SHORT.to_owned());
                // This may free enough memory.
                return;
            }
        }
    }

    /// PIDs of the standbys that belong to no attempt yet.
    pub(super) fn spared(&self) -> impl Iterator<Item = i32> + '_ {
        self.waiting.iter().map(|waiting| waiting.process.pid)
    }

    /// The rank that a process stands in for; else the process itself.
    pub(super) fn behind(&self, caller: i32) -> i32 {
        let mut callers = self.callers.iter().filter(|found| found.pid == caller);
        let rank = callers.find_map(|found| match found.stage {
            Stage::Running { pid, .. } => Some(pid),
            _ => None,
        });
        rank.unwrap_or(caller)
    }

    /// When [`Ranks::serve`] is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        self.wake
    }

    /// Reads calls and the messages of standbys, and starts the next standby if one is due.
    pub(super) fn serve(&mut self, context: &Context<'_>) -> Vec<Input> {
        self.now = context.now;
        let listens_again = self.deaf_until.is_some_and(|until| until <= self.now);
        if listens_again || context.watched.is_ready() {
            self.hear_standbys();
            self.accept(context);
            self.hear_callers();
            self.look_at_cold();
        }
        self.answer_calls(context);
        self.hang_up_on_silent();
        self.press();
        self.answer_refused(context);
        self.callers.retain(|caller| !matches!(caller.stage, Stage::Over));
        let up = context.running && context.beats;
        if up && self.settles.is_some_and(|at| at <= self.now) {
            self.settle();
        }
        let next = self.start_next(context);
        let settles = self.settles.filter(|_| up);
        let awaited = self.callers.iter().filter_map(|caller| match &caller.stage {
            Stage::Open(by) => Some(*by),
            Stage::Releasing(release) => release.going.deadline(),
            _ => None,
        });
        let others = [next, settles, self.deaf_until].into_iter().flatten();
        self.wake = awaited.chain(others).min();
        std::mem::take(&mut self.inputs)
    }

    fn hear_standbys(&mut self) {
        for waiting in &mut self.waiting {
            let warmed = waiting.process.state == State::Warming;
            waiting.process.listen();
            if waiting.process.closed {
                // It has ended, or takes no messages any more.
                waiting.process.kill();
            }
            if let State::Ready(ready) = waiting.process.state
                && let Some(kind) = self.kinds.get(waiting.kind)
            {
                kind.size_kib = Some(ready.memory_kib);
                if warmed {
                    Log::ready(&ready, waiting.process.parks);
                }
            }
        }
    }

    /// True if the process was a rank or a standby of one.
    pub(super) fn reaped(&mut self, pid: i32, exit: Exit) -> bool {
        if let Some(at) = self.waiting.iter().position(|waiting| waiting.process.pid == pid) {
            let mut waiting = self.waiting.swap_remove(at);
            waiting.process.hear_out();
            waiting.process.kill_group();
            if !waiting.ended {
                let fault = waiting.process.cause(is_sent(exit));
                let otherwise = ended::told("a rank's standby", exit, "");
                self.failed(waiting.kind, fault, waiting.skipped, otherwise);
            }
            return true;
        }
        self.rank_reaped(pid, exit)
    }

    /// A rank runs.
    pub(super) fn started(&mut self, kind: u32, source: Source, ahead: Duration) {
        self.kinds.started(kind);
        self.inputs.push(Input::RankStarted { source, ahead });
    }

    /// True if another call would exceed the limit.
    pub(super) fn is_full(&self) -> bool {
        self.callers.len() + self.cold.len() + self.dying.len() >= MAX_RANKS
    }
}

#[cfg(test)]
mod tests;
