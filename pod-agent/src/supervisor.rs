//! The agent's one loop: facts from the kernel and the daemon go into the [`Machine`], and its
//! decisions are carried out.
//!
//! Children are reaped first, so that an exit counts before an order that came at the same time.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use thiserror::Error;

use crate::args::{Ahead, Args};
use crate::convert;
use crate::heartbeat::{BY_SOCKET, Pulse, Transport};
use crate::link::Link;
use crate::machine::{Action, Exit, Generation, Heartbeat, Input, Machine, Moment, Phase, Source, UnixNanos};
use crate::mounts::Mounts;
use crate::procs::Procs;
use crate::standby::{Ended, Standbys};
use crate::sys::{self, Interest, Reaped, Signals};
use crate::worker;

/// How long a last report may hold up the end of the container.
const FLUSH: Duration = Duration::from_millis(100);
/// Between attempts to connect for a last report.
const FLUSH_RETRY: Duration = Duration::from_millis(10);

/// Why the agent cannot work at all.
#[derive(Debug, Error)]
pub(crate) enum SupervisorError {
    #[error("not PID 1 but {0}: the agent only supervises a container with a PID namespace of its own")]
    NotPid1(u32),
    #[error("cannot {what}: {source}")]
    Io { what: &'static str, source: io::Error },
}

/// The agent.
#[derive(Debug)]
pub(crate) struct Supervisor {
    args: Args,
    machine: Machine,
    link: Link,
    signals: Signals,
    procs: Procs,
    /// None outside a container: there, not all mounts are the worker's.
    mounts: Option<Mounts>,
    pulse: Pulse,
    standbys: Standbys,
    /// PID of the worker itself, until it is reaped.
    worker: Option<i32>,
    started: Instant,
    exit: Option<Leave>,
}

#[derive(Clone, Copy, Debug)]
struct Leave {
    code: i32,
    flush: bool,
}

fn failed(what: &'static str) -> impl Fn(io::Error) -> SupervisorError {
    move |source| SupervisorError::Io { what, source }
}

impl Supervisor {
    pub(crate) fn new(args: Args) -> Result<Self, SupervisorError> {
        let pid = std::process::id();
        if pid != 1 {
            if !args.allow_not_pid1 {
                return Err(SupervisorError::NotPid1(pid));
            }
            sys::become_subreaper().map_err(failed("adopt orphans"))?;
        }
        let started = Instant::now();
        let transport = match std::env::var_os(worker::HEARTBEAT) {
            Some(how) if how == BY_SOCKET => Transport::Socket,
            _ => Transport::File,
        };
        let standbys = match &args.standby {
            None => Standbys::new(None, &args.command),
            Some(Ahead::Python(dir)) => Standbys::new(Some(dir), &args.command),
            Some(Ahead::Program) => Standbys::of_program(&args.command),
        };
        let mut machine = Machine::new(moment(started)).with_termination_grace(args.termination_grace);
        if standbys.are_possible() {
            machine = machine.with_standby();
        } else if standbys.are_of_ranks() {
            machine = machine.with_standbys_of_ranks();
        }
        Ok(Self {
            machine,
            standbys,
            link: Link::new(&args.socket),
            signals: Signals::block().map_err(failed("receive signals"))?,
            procs: Procs::new(pid.cast_signed()),
            mounts: (pid == 1).then(Mounts::remember),
            pulse: Pulse::new(args.heartbeat.clone(), transport),
            worker: None,
            started,
            exit: None,
            args,
        })
    }

    /// Supervises until there is nothing left to supervise. Returns the container's exit code.
    pub(crate) fn run(mut self) -> Result<i32, SupervisorError> {
        loop {
            self.connect();
            if self.machine.deadline().is_some_and(|at| at <= self.now()) {
                self.feed(Input::Tick);
            }
            self.reap()?;
            self.check_heartbeat();
            if let Some(progress) = self.pulse.news(self.now()) {
                self.feed(Input::Progress(progress));
            }
            self.look_at_standbys();
            if let Some(leave) = self.exit {
                if leave.flush {
                    self.flush()?;
                }
                return Ok(leave.code);
            }
            let deadline = [
                self.machine.deadline(),
                self.link.deadline(),
                self.pulse.deadline(),
                self.pulse.news_due(),
                self.standbys.deadline(),
            ]
            .into_iter()
            .flatten()
            .min();
            let [signalled, linked, told] = self.wait(deadline)?;
            if signalled {
                self.reap()?;
                self.take_signals()?;
            }
            if told && let Some(input) = self.standbys.listen(self.now()) {
                self.feed(input);
            }
            if linked {
                self.take_targets()?;
            }
        }
    }

    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Sleeps until something happens, at most until `deadline`.
    fn wait(&mut self, deadline: Option<Duration>) -> Result<[bool; 3], SupervisorError> {
        let signals = Interest {
            fd: self.signals.as_raw_fd(),
            write: false,
        };
        let timeout = deadline.map(|at| at.saturating_sub(self.now()));
        let interests = [
            Some(signals),
            self.link.interest(),
            self.pulse.interest(),
            self.standbys.interest(),
        ];
        let [signalled, linked, beaten, told] =
            sys::wait_ready(interests, timeout).map_err(failed("poll"))?;
        if beaten {
            self.pulse.take();
        }
        Ok([signalled, linked, told])
    }

    /// Checks the worker's heartbeat, if that is due.
    fn check_heartbeat(&mut self) {
        let now = self.now();
        let asked = (self.machine.heartbeat_timeout(), self.machine.ready_timeout());
        self.pulse.ask(asked, now);
        if self.pulse.deadline().is_some_and(|at| at <= now) {
            let heartbeat = self.pulse.check(now);
            self.feed(Input::Heartbeat(heartbeat));
        }
    }

    /// Ends standbys if memory is short, and passes on what there is to say of them.
    fn look_at_standbys(&mut self) {
        self.standbys.tend(self.now());
        let running = self.machine.serves_calls();
        let heartbeat = self.machine.status().heartbeat;
        let beats = !matches!(heartbeat, Heartbeat::Awaited | Heartbeat::Overdue);
        for input in self.standbys.serve(self.now(), running, beats) {
            self.feed(input);
        }
        if let Some(news) = self.standbys.news() {
            self.feed(news);
        }
    }

    fn connect(&mut self) {
        let now = self.now();
        if self.link.connect(now) {
            let status = self.machine.status();
            self.link.open(
                now,
                &convert::register(&self.args, status),
                convert::state(status),
            );
        }
    }

    /// Reaps all children that have ended, the worker and orphans alike.
    fn reap(&mut self) -> Result<(), SupervisorError> {
        loop {
            match sys::reap().map_err(failed("reap children"))? {
                Reaped::Child(pid, exit) if self.worker == Some(pid) => {
                    self.worker = None;
                    self.tell_all_progress();
                    match self.standbys.reaped(pid, exit) {
                        Some(Ended::Refused) => {
                            self.feed(Input::StandbyRefused(exit));
                            continue;
                        }
                        Some(Ended::Confirmed) => self.feed(Input::Started),
                        Some(Ended::Waiting { .. }) | None => {}
                    }
                    self.feed(Input::WorkerExited(exit));
                    if matches!(self.machine.status().phase, Phase::Exited(_)) && !self.link.is_up() {
                        worker::say("cannot reach the node daemon; the group restarts once it is back");
                    }
                }
                Reaped::Child(pid, exit) => {
                    if let Some(Ended::Waiting { hopeless }) = self.standbys.reaped(pid, exit) {
                        self.feed(Input::StandbyGone { hopeless });
                    }
                }
                Reaped::NotYet => {
                    if self.machine.awaits_empty() && self.tree().only_strangers() {
                        let empty = self.emptied();
                        self.feed(empty);
                    }
                    return Ok(());
                }
                Reaped::NoChildren => {
                    if self.machine.awaits_empty() {
                        let empty = self.emptied();
                        self.feed(empty);
                    }
                    return Ok(());
                }
            }
        }
    }

    /// Passes on the last that a worker has said before it ended.
    fn tell_all_progress(&mut self) {
        self.pulse.take();
        if let Some(progress) = self.pulse.all_news(self.now()) {
            self.feed(Input::Progress(progress));
        }
    }

    /// The worker's processes, without standbys.
    fn tree(&mut self) -> &mut Procs {
        self.procs.spare(self.standbys.spared());
        &mut self.procs
    }

    /// No process of the worker is left, so nothing can mount anything meanwhile.
    fn emptied(&mut self) -> Input {
        self.procs.emptied();
        if let Some(line) = self.mounts.as_mut().and_then(Mounts::undo) {
            worker::say(&line);
        }
        Input::TreeEmpty
    }

    fn take_signals(&mut self) -> Result<(), SupervisorError> {
        while let Some(signal) = self.signals.next().map_err(failed("read signals"))? {
            if signal.signo != libc::SIGCHLD {
                self.feed(Input::Signal {
                    signo: signal.signo,
                    outside: signal.outside,
                });
            }
        }
        Ok(())
    }

    fn take_targets(&mut self) -> Result<(), SupervisorError> {
        for target in self.link.drive(self.now()) {
            self.reap()?;
            self.feed(Input::Target(convert::target(target, self.args.grace_default)));
        }
        Ok(())
    }

    /// Gives the machine a fact and carries out its actions, and does the same for the facts that
    /// these produce.
    fn feed(&mut self, input: Input) {
        let mut inputs = VecDeque::from([input]);
        while let Some(input) = inputs.pop_front() {
            for action in self.machine.step(moment(self.started), input) {
                inputs.extend(self.act(action));
            }
        }
    }

    fn act(&mut self, action: Action) -> Option<Input> {
        match action {
            Action::Report => self.link.post(self.now(), convert::state(self.machine.status())),
            Action::Start { generation, source } => {
                self.standbys.begin(self.now());
                let asked = (self.machine.heartbeat_timeout(), self.machine.ready_timeout());
                if let Err(error) = self.pulse.start(asked, self.now()) {
                    worker::say(&format!("cannot take heartbeats: {error}"));
                }
                if source == Source::Standby {
                    return self.release(generation);
                }
                let heartbeat = self.pulse.path();
                let mask = self.signals.before();
                return Some(
                    match worker::start(&self.args.command, generation, heartbeat, mask, |worker| {
                        self.standbys.learn(worker)
                    }) {
                        Ok(pid) => {
                            self.worker = Some(pid);
                            self.standbys.runs(pid);
                            Input::Started
                        }
                        Err(error) => Input::StartFailed {
                            code: error.code,
                            detail: error.detail,
                        },
                    },
                );
            }
            Action::Terminate => self.tree().terminate(),
            Action::Kill { all } => {
                // Without children there is nothing to kill; the next reaping finds that.
                if sys::has_children() {
                    return Some(match self.tree().kill(all) {
                        Some(report) => Input::Killed(report),
                        None => self.emptied(),
                    });
                }
            }
            Action::Forward(signo) => {
                if let Some(pid) = self.worker {
                    // It is not reaped, so the PID is still its own; a zombie takes the signal too.
                    let _ = sys::kill(self.standbys.behind(pid), signo);
                }
            }
            Action::Say(text) => worker::say(&text),
            Action::Warm => return self.standbys.warm(self.worker, self.signals.before(), self.now()),
            Action::EndStandbys => self.standbys.end(),
            Action::GiveUpStandby => return self.standbys.give_up(),
            Action::Exit { code, flush } => self.exit = Some(Leave { code, flush }),
        }
        None
    }

    /// Lets the standby go on as the worker of this generation.
    fn release(&mut self, generation: Generation) -> Option<Input> {
        let attempt = OsString::from(generation.to_string());
        let variables = [
            (OsStr::new(worker::ATTEMPT), Some(attempt.as_os_str())),
            (
                OsStr::new(worker::HEARTBEAT),
                self.pulse.path().map(Path::as_os_str),
            ),
        ];
        self.worker = self.standbys.release(variables);
        // One that is gone has ended without running anything.
        let gone = Exit::Signal(libc::SIGKILL);
        self.worker.is_none().then_some(Input::StandbyRefused(gone))
    }

    /// Tries for a short while to get the last report out.
    fn flush(&mut self) -> Result<(), SupervisorError> {
        let end = self.now() + FLUSH;
        while !self.link.is_flushed() && self.now() < end {
            self.link.hurry(self.now() + FLUSH_RETRY);
            self.connect();
            let deadline = self.link.deadline().map_or(end, |at| at.min(end));
            if !self.link.is_flushed() {
                self.wait(Some(deadline))?;
                // Signals and orders come too late now.
                self.take_signals()?;
                drop(self.link.drive(self.now()));
            }
        }
        Ok(())
    }
}

fn moment(started: Instant) -> Moment {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Moment {
        mono: started.elapsed(),
        unix: UnixNanos(i64::try_from(unix.as_nanos()).unwrap_or(i64::MAX)),
        boot: sys::boot_nanos(),
    }
}
