//! What the agent does next. Pure: no system calls and no clock; time and facts come in, actions go
//! out.
//!
//! ```text
//!            release, named                 exits 0
//!   Fresh ───────────────────> Running ───────────────> Done (the agent exits 0)
//!     │                        ^    │ exits otherwise
//!     │ newer generation       │    ├────────────────> Exited ──┐
//!     │                release │    │ newer generation          │ newer generation
//!     v                        │    v                           v
//!   Parked <───────────────────┼─ Stopping <────────────────────┘
//!     └────────────────────────┘      (SIGTERM, grace, SIGKILL until no process remains)
//! ```
//!
//! It promises (restart-protocol.md, rules 4, 5, 7, 9 and 14):
//! - The worker starts only on a release of exactly the generation that it has. Its first start in
//!   this incarnation also needs a release that names the incarnation. A generation runs at most
//!   once, and is started only while no process of the one before remains.
//! - Epoch and generation never fall. An order that is behind is answered with the state, not
//!   obeyed.
//! - An exit after the stop signal of a restart is a park, whatever its code. Exit 0 before it is
//!   Done.
//! - A request to the daemon to kill processes covers only those started before a time at which the
//!   next worker had not started.
//! - Once asked to exit (by a SIGTERM, or any signal of the container runtime but SIGCONT) it
//!   starts nothing any more, and exits as the worker does. The worker then has the time that
//!   Kubernetes grants it; orders do not shorten that. If it still runs after that time, the signal
//!   was not meant for the container: the worker is supervised again, and the newest order is
//!   obeyed.

use std::time::Duration;

use lockstep_mutants::mutant;

mod action;
pub mod calls;
mod exits;
mod heartbeat;
mod input;
mod killing;
mod leaving;
mod standby;
mod status;

use killing::Killing;
use standby::Standby;

pub use action::{Action, KillReport, Source};
pub use input::{Input, Moment, Target, TerminalCodes};
pub use status::{
    BootNanos, Epoch, Exit, Generation, Heartbeat, Phase, Progress, Standbys, Starts, Status, UnixNanos,
};

/// Shorter waits for a release are not logged.
const SAY_WAITING_AFTER: Duration = Duration::from_secs(1);

/// The state of one incarnation.
#[derive(Debug)]
pub struct Machine {
    status: Status,
    /// The newest target that was obeyed.
    target: Target,
    /// True once the worker was started.
    ran: bool,
    /// The time that Kubernetes gives this container to end; none: unknown, and the agent waits
    /// without limit.
    termination_grace: Option<Duration>,
    /// The signal that asked the agent to exit.
    asked_to_exit_by: Option<i32>,
    /// When a worker that still runs is supervised again.
    supervise_again_at: Option<Duration>,
    /// The newest target since that signal.
    deferred: Option<Target>,
    /// End of the grace after SIGTERM.
    kill_at: Option<Duration>,
    killing: Option<Killing>,
    /// How the worker failed, for people. It precedes texts about leftovers.
    failure: String,
    say_waiting_at: Option<Duration>,
    standby: Standby,
    gone: bool,
}

impl Machine {
    /// A fresh agent that has never started its worker.
    #[must_use]
    pub fn new(now: Moment) -> Self {
        Self {
            status: Status {
                phase: Phase::Fresh,
                generation: Generation::default(),
                epoch: Epoch::default(),
                counted_restarts: 0,
                revision: 1,
                since: now.unix,
                detail: String::new(),
                needs_host_kill: false,
                host_kill_before: BootNanos::default(),
                heartbeat: Heartbeat::Well,
                starts: None,
                standbys: None,
                progress: Progress::default(),
            },
            target: Target::default(),
            ran: false,
            termination_grace: None,
            asked_to_exit_by: None,
            supervise_again_at: None,
            deferred: None,
            kill_at: None,
            killing: None,
            failure: String::new(),
            say_waiting_at: Some(now.mono + SAY_WAITING_AFTER),
            standby: Standby::default(),
            gone: false,
        }
    }

    /// The same agent in a container that Kubernetes gives this time to end.
    #[must_use]
    pub fn with_termination_grace(mut self, grace: Option<Duration>) -> Self {
        self.termination_grace = grace;
        self
    }

    /// What the daemon should know.
    #[must_use]
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// When `Tick` is due, on the monotonic clock.
    #[must_use]
    pub fn deadline(&self) -> Option<Duration> {
        let killing = self.killing.as_ref().map(|killing| killing.next);
        let standby = self.standby.deadline();
        [
            self.kill_at,
            killing,
            self.say_waiting_at,
            self.supervise_again_at,
            standby,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Longest time between two heartbeats that is required of the worker now; zero: none are
    /// required.
    #[must_use]
    pub fn heartbeat_timeout(&self) -> Duration {
        match self.status.phase {
            // A worker that is asked to exit has other things to do.
            Phase::Starting | Phase::Running if self.asked_to_exit_by.is_none() => {
                self.target.heartbeat_timeout
            }
            _ => Duration::ZERO,
        }
    }

    /// How long the worker may take until its first heartbeat; zero: no limit.
    #[must_use]
    pub fn ready_timeout(&self) -> Duration {
        self.target.ready_timeout
    }

    /// True while it matters that no process remains.
    #[must_use]
    pub fn awaits_empty(&self) -> bool {
        self.status.phase == Phase::Stopping || self.killing.is_some()
    }

    /// Takes in one fact.
    pub fn step(&mut self, now: Moment, input: Input) -> Vec<Action> {
        let mut todo = Vec::new();
        if self.gone {
            return todo;
        }
        let before = self.status.clone();
        match input {
            Input::Target(target) => self.on_target(now, target, &mut todo),
            Input::Started => self.on_started(now),
            Input::StartFailed { code, detail } => self.on_start_failed(now, code, detail, &mut todo),
            Input::WorkerExited(exit) => self.on_worker_exited(now, exit, &mut todo),
            Input::TreeEmpty => self.on_tree_empty(now, &mut todo),
            Input::Killed(report) => self.on_killed(now, report, &mut todo),
            Input::Heartbeat(heartbeat) => self.on_heartbeat(now, heartbeat, &mut todo),
            Input::Progress(progress) => self.status.progress = progress,
            Input::StandbyReady { ahead } => self.on_standby_ready(ahead),
            Input::StandbyGone { hopeless } => self.on_standby_gone(now, hopeless),
            Input::StandbyRefused(exit) => self.on_standby_refused(now, exit, &mut todo),
            Input::Standbys(standbys) => self.status.standbys = Some(standbys),
            Input::RankStarted { source, ahead } => self.count_start(source, ahead),
            Input::Signal { signo, outside } => self.on_signal(now, signo, outside, &mut todo),
            Input::Tick => self.on_tick(now, &mut todo),
        }
        if self.heartbeat_timeout().is_zero() {
            self.status.heartbeat = Heartbeat::Well;
        }
        if self.status != before {
            self.status.revision += 1;
            let entered = |status: &Status| (status.phase, status.generation, status.heartbeat.is_late());
            if entered(&self.status) != entered(&before) {
                self.status.since = now.unix;
            }
            if !todo.contains(&Action::Report) {
                todo.insert(0, Action::Report);
            }
        }
        todo
    }

    fn on_target(&mut self, now: Moment, target: Target, todo: &mut Vec<Action>) {
        let behind = target.epoch < self.status.epoch || target.generation < self.status.generation;
        self.status.epoch = self.status.epoch.max(target.epoch);
        if behind || self.asked_to_exit_by.is_some() {
            let deferred = self.deferred.as_ref().map(|deferred| deferred.generation);
            if !behind && deferred.is_none_or(|deferred| target.generation >= deferred) {
                self.deferred = Some(target);
            }
            todo.push(Action::Report);
            return;
        }
        self.status.counted_restarts = self.status.counted_restarts.max(target.counted_restarts);
        let newer = target.generation > self.status.generation;
        self.target = target;
        match self.status.phase {
            Phase::Fresh if self.may_start() => {
                self.status.generation = self.target.generation;
                self.start(now, todo);
            }
            Phase::Fresh if self.target.release => {
                // Released for others: this incarnation came too late for it and joins the next
                // generation.
            }
            Phase::Fresh if newer => self.park(now, todo),
            Phase::Fresh | Phase::Done => {}
            Phase::Starting | Phase::Running if newer => self.stop(now, todo),
            Phase::Starting | Phase::Running => {}
            Phase::Stopping => self.status.generation = self.target.generation,
            Phase::Parked if newer || self.may_start() => self.park(now, todo),
            Phase::Parked => {}
            Phase::Exited(_) if newer && self.killing.is_some() => {
                self.status.generation = self.target.generation;
                self.status.phase = Phase::Stopping;
                if !self.is_stuck() {
                    self.status.detail.clear();
                }
            }
            Phase::Exited(_) if newer => self.park(now, todo),
            Phase::Exited(_) if self.target.release && mutant!(ReleaseTwice) => self.start(now, todo),
            Phase::Exited(_) => {}
        }
    }

    fn on_started(&mut self, now: Moment) {
        self.standby.confirmed();
        if self.status.phase == Phase::Starting {
            self.status.phase = Phase::Running;
            if !self.target.heartbeat_timeout.is_zero() {
                self.status.heartbeat = Heartbeat::Awaited;
            }
            if self.asked_to_exit_by.is_none() {
                if self.status.heartbeat == Heartbeat::Awaited {
                    self.standby.worker_will_beat();
                } else {
                    self.standby.worker_runs(now);
                }
            }
        }
    }

    fn on_tree_empty(&mut self, now: Moment, todo: &mut Vec<Action>) {
        self.killing = None;
        self.status.needs_host_kill = false;
        self.status.host_kill_before = BootNanos::default();
        if self.status.phase != Phase::Stopping {
            if matches!(self.status.phase, Phase::Exited(_)) {
                self.status.detail.clone_from(&self.failure);
            }
            return;
        }
        match self.asked_to_exit_by {
            Some(signo) => self.leave_at_once(128 + signo, todo),
            None => self.park(now, todo),
        }
    }

    fn on_tick(&mut self, now: Moment, todo: &mut Vec<Action>) {
        if let Some(signo) = self.asked_to_exit_by
            && self.supervise_again_at.is_some_and(|at| at <= now.mono)
        {
            return self.stay(now, signo, todo);
        }
        if self.say_waiting_at.is_some_and(|at| at <= now.mono) {
            self.say_waiting_at = None;
            todo.push(Action::Say(match (self.status.phase, self.status.generation) {
                (Phase::Fresh, _) => "waiting for the first release of this container".to_owned(),
                (_, generation) => format!("waiting for release of generation {generation}"),
            }));
        }
        if self.kill_at.is_some_and(|at| at <= now.mono) {
            let grace = self.target.grace.as_millis();
            todo.push(Action::Say(format!(
                "worker still running {grace} ms after SIGTERM: sending SIGKILL"
            )));
            self.begin_kill(now, todo);
            return;
        }
        self.kill_again(now, todo);
        self.tick_standby(now, todo);
    }

    /// Begins to stop a running worker for the order's generation.
    fn stop(&mut self, now: Moment, todo: &mut Vec<Action>) {
        self.status.phase = Phase::Stopping;
        self.status.generation = self.target.generation;
        self.status.detail.clear();
        if mutant!(StopEndsStandby) {
            self.standby.abandon(todo);
        }
        if self.target.grace.is_zero() {
            self.begin_kill(now, todo);
        } else {
            self.kill_at = Some(now.mono + self.target.grace);
            todo.push(Action::Terminate);
        }
    }

    /// No process remains: waits at the order's generation, or starts if it is released already.
    fn park(&mut self, now: Moment, todo: &mut Vec<Action>) {
        let newly = self.status.phase != Phase::Parked || self.status.generation != self.target.generation;
        self.status.phase = Phase::Parked;
        self.status.generation = self.target.generation;
        self.status.detail.clear();
        self.kill_at = None;
        if self.may_start() {
            self.start(now, todo);
        } else if newly {
            self.say_waiting_at = Some(now.mono + SAY_WAITING_AFTER);
        }
    }

    /// True if the newest order is a release that counts for this incarnation.
    fn may_start(&self) -> bool {
        self.target.release && (self.ran || self.target.start_fresh || mutant!(StartUnnamed))
    }

    fn start(&mut self, now: Moment, todo: &mut Vec<Action>) {
        self.ran = true;
        self.status.phase = Phase::Starting;
        self.status.detail.clear();
        self.status.progress = Progress::default();
        self.say_waiting_at = None;
        self.start_from_standby_or_cold(now, todo);
    }
}

#[cfg(test)]
mod tests;
