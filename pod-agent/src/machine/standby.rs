//! The worker's standby: when one is started ahead, and whether the next attempt begins from it.
//!
//! It promises (restart-protocol.md, rule 18):
//! - A start is from the standby only if the standby is ready. Every other start is cold, as
//!   without standbys.
//! - Only one process is released for an attempt. A cold start follows a released standby only
//!   once that has ended without running anything of the worker.
//! - A waiting standby is no process of the worker: a stop neither ends it nor waits for it. If the
//!   agent asks the daemon to kill processes, it ends the standby, since the daemon would kill that
//!   too.

use std::time::Duration;

use lockstep_mutants::mutant;

use super::{Action, Exit, Machine, Moment, Phase, Source, Starts};

/// How long a worker runs before standbys are started, unless a heartbeat shows earlier that it is
/// up.
pub(super) const SETTLED: Duration = Duration::from_secs(30);
/// How long a released standby may take to confirm that it goes on.
pub(super) const CONFIRM: Duration = Duration::from_secs(2);
/// Bounds of the wait before the next standby, if one after the other ends. The lower bound is
/// short, since each restart before that has no standby.
pub(super) const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(600));

/// The worker's standby, as the machine knows it.
#[derive(Debug, Default)]
pub(super) struct Standby {
    /// False for a worker that asks for none, or cannot have one.
    wanted: bool,
    /// True once another standby of the worker itself would fail like the last one.
    hopeless: bool,
    /// True if only processes that the worker starts through the agent have standbys.
    of_ranks: bool,
    state: State,
    /// When the running worker counts as up, if that is known.
    up_at: Option<Duration>,
    /// The latest wait. The wait after the next standby that ends is longer.
    again: Duration,
    /// The end of that wait.
    not_before: Duration,
    /// Deadline for a released standby to confirm that it goes on.
    confirm_by: Option<Duration>,
    /// CPU time of its imports.
    ahead: Duration,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    None,
    Warming,
    Ready,
    /// Released, and not confirmed yet.
    Released,
    /// Being ended, and never released.
    Ending,
}

impl Standby {
    pub(super) fn deadline(&self) -> Option<Duration> {
        [self.warm_at(), self.confirm_by].into_iter().flatten().min()
    }

    /// When the next standby is started.
    fn warm_at(&self) -> Option<Duration> {
        let needed = self.wanted && !self.hopeless && self.state == State::None;
        self.up_at
            .filter(|_| needed)
            .map(|up_at| up_at.max(self.not_before))
    }

    /// The worker runs, and counts as up once it has run for a while.
    pub(super) fn worker_runs(&mut self, now: Moment) {
        self.up_at = Some(now.mono + SETTLED);
    }

    /// The worker runs. Its first heartbeat will show when it is up.
    pub(super) fn worker_will_beat(&mut self) {
        self.up_at = None;
    }

    /// The worker has sent a heartbeat.
    pub(super) fn worker_is_up(&mut self, now: Moment) {
        self.up_at.get_or_insert(now.mono);
    }

    /// The standby goes on as the worker, or the worker has been started cold.
    pub(super) fn confirmed(&mut self) {
        if self.state == State::Released {
            self.state = State::None;
            (self.again, self.not_before) = (Duration::ZERO, Duration::ZERO);
        }
        self.confirm_by = None;
    }

    /// The standby has ended without serving an attempt: the next one waits for longer.
    fn ended(&mut self, now: Moment) {
        self.state = State::None;
        self.again = (self.again * 2).clamp(AGAIN.0, AGAIN.1);
        self.not_before = now.mono + self.again;
    }

    /// Ends all standbys: the container ends.
    pub(super) fn abandon(&mut self, todo: &mut Vec<Action>) {
        mutant!(LeaveBesideStandby => return);
        self.up_at = None;
        self.end_waiting(todo);
    }

    /// Ends the waiting standby: the daemon is asked to kill all processes that run now, and may do
    /// that late.
    pub(super) fn doom(&mut self, todo: &mut Vec<Action>) {
        mutant!(ReleaseDoomedStandby => return);
        self.end_waiting(todo);
    }

    /// Ends all waiting standbys, including those of ranks. None of them is released any more.
    fn end_waiting(&mut self, todo: &mut Vec<Action>) {
        let own = matches!(self.state, State::Warming | State::Ready);
        if own {
            // Nothing is heard of the end of those of ranks.
            self.state = if self.of_ranks { State::None } else { State::Ending };
        }
        let needed = own || !mutant!(KeepStandbysOfRanks);
        if self.wanted && needed && !todo.contains(&Action::EndStandbys) {
            todo.push(Action::EndStandbys);
        }
    }
}

impl Machine {
    /// The same agent for a worker that can be started from a standby.
    #[must_use]
    pub fn with_standby(mut self) -> Self {
        self.standby.wanted = true;
        self
    }

    /// The same agent for a worker that is started cold, but starts processes that can have
    /// standbys.
    #[must_use]
    pub fn with_standbys_of_ranks(mut self) -> Self {
        (self.standby.wanted, self.standby.of_ranks) = (true, true);
        self
    }

    pub(super) fn start_from_standby_or_cold(&mut self, now: Moment, todo: &mut Vec<Action>) {
        if self.standby.of_ranks {
            // This module gets no reports about them, so it asks for them once in each attempt.
            self.standby.state = State::None;
        }
        let source = match self.standby.state {
            State::Ready => Source::Standby,
            State::Warming if mutant!(ReleaseWarmingStandby) => Source::Standby,
            State::None | State::Warming | State::Released | State::Ending => Source::Cold,
        };
        if self.standby.wanted {
            let before = self.status.starts.filter(|_| mutant!(CountStartsOfBefore));
            self.status.starts = Some(before.unwrap_or_default());
        }
        if source == Source::Standby {
            self.standby.state = State::Released;
            self.standby.confirm_by = (!mutant!(NeverGiveUpStandby)).then(|| now.mono + CONFIRM);
            if mutant!(ReleaseStandbyAndColdStart) {
                self.push_start(Source::Cold, todo);
            }
        }
        self.standby.up_at = None;
        self.push_start(source, todo);
    }

    fn push_start(&mut self, source: Source, todo: &mut Vec<Action>) {
        let ahead = match source {
            Source::Cold => Duration::ZERO,
            Source::Standby => self.standby.ahead,
        };
        if !self.standby.of_ranks {
            self.count_start(source, ahead);
        }
        let mut generation = self.status.generation;
        if source == Source::Standby && mutant!(ReleaseStandbyAsBefore) {
            generation.0 = generation.0.saturating_sub(1);
        }
        todo.push(Action::Start { generation, source });
    }

    pub(super) fn count_start(&mut self, source: Source, ahead: Duration) {
        let Some(starts) = &mut self.status.starts else {
            return;
        };
        match source {
            Source::Cold => starts.cold = starts.cold.saturating_add(1),
            Source::Standby => starts.standby = starts.standby.saturating_add(1),
        }
        starts.ahead = starts.ahead.max(ahead);
    }

    pub(super) fn on_standby_ready(&mut self, ahead: Duration) {
        if self.standby.state == State::Warming {
            self.standby.state = State::Ready;
        }
        self.standby.ahead = ahead;
    }

    pub(super) fn on_standby_gone(&mut self, now: Moment, hopeless: bool) {
        if !matches!(self.standby.state, State::Warming | State::Ready | State::Ending) {
            return;
        }
        self.standby.hopeless |= hopeless;
        self.standby.ended(now);
    }

    /// The released standby ran nothing of the worker, so the attempt begins cold. The cold start
    /// belongs to the release that the standby had, whatever the order is now: no leader releases
    /// an attempt twice.
    pub(super) fn on_standby_refused(&mut self, now: Moment, exit: Exit, todo: &mut Vec<Action>) {
        let released = self.standby.state == State::Released;
        let was_slow = released && self.standby.confirm_by.is_none();
        if was_slow {
            // It has delayed the attempt, and the next one would too.
            self.standby.ended(now);
        } else {
            self.standby.confirmed();
        }
        if self.status.phase != Phase::Starting || !released {
            return;
        }
        if let Some(signo) = self.asked_to_exit_by {
            // Its exit code is not the worker's: 0 would count as the worker's success.
            self.leave_at_once(128 + signo, todo);
            return;
        }
        if mutant!(RefusalIsFailure) {
            return self.on_worker_exited(now, exit, todo);
        }
        self.status.starts = Some(Starts::default());
        self.push_start(Source::Cold, todo);
    }

    pub(super) fn tick_standby(&mut self, now: Moment, todo: &mut Vec<Action>) {
        if self.standby.confirm_by.is_some_and(|at| at <= now.mono) {
            self.standby.confirm_by = None;
            todo.push(Action::GiveUpStandby);
            if mutant!(ColdStartBesideStandby) {
                self.push_start(Source::Cold, todo);
            }
        }
        if self.standby.warm_at().is_some_and(|at| at <= now.mono) {
            if self.status.phase == Phase::Running && self.asked_to_exit_by.is_none() {
                self.standby.state = State::Warming;
                todo.push(Action::Warm);
            } else {
                self.standby.up_at = None;
            }
        }
    }
}
