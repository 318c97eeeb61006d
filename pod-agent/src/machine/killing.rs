//! Rounds of SIGKILL, until no process of the worker's tree remains.

use std::time::Duration;

use super::{Action, KillReport, Machine, Moment, Phase};

/// How long SIGKILL may take before the agent asks the daemon for help and stops sparing sessions
/// of `kubectl exec`.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);
/// Time between two requests for help to the daemon, if the first was not enough: the next one
/// covers processes started since.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Bounds of the pause between two rounds of SIGKILL.
const KILL_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// The rounds of SIGKILL that are under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Killing {
    pub(super) since: Duration,
    pub(super) next: Duration,
    pub(super) pause: Duration,
    pub(super) report: KillReport,
    /// Set once it is logged that processes outlive SIGKILL.
    pub(super) logged: bool,
}

impl Machine {
    pub(super) fn on_killed(&mut self, now: Moment, report: KillReport, todo: &mut Vec<Action>) {
        if self.killing.is_none() {
            return;
        }
        if report.denied {
            self.ask_for_host_kill(now, todo);
            self.status.detail = self.of_leftovers(&report.note);
        }
        let Some(killing) = &mut self.killing else { return };
        if report.forking {
            // At once: only a round that is faster than the forks can succeed.
            killing.next = now.mono;
        }
        killing.report = report;
    }

    /// Asks the daemon to kill what runs now, and asks again later to cover what was started since.
    pub(super) fn ask_for_host_kill(&mut self, now: Moment, todo: &mut Vec<Action>) {
        self.standby.doom(todo);
        let asked = Duration::from_nanos(self.status.host_kill_before.0);
        if !self.status.needs_host_kill || Duration::from_nanos(now.boot.0) >= asked + ASK_AGAIN {
            self.status.needs_host_kill = true;
            self.status.host_kill_before = now.boot;
        }
    }

    /// A text about leftovers, preceded by how the worker failed.
    pub(super) fn of_leftovers(&self, note: &str) -> String {
        match self.status.phase {
            Phase::Exited(_) => format!("{}; {note}", self.failure),
            _ => note.to_owned(),
        }
    }

    /// True if it was reported that what remains resists SIGKILL.
    pub(super) fn is_stuck(&self) -> bool {
        self.status.needs_host_kill || self.killing.as_ref().is_some_and(|killing| killing.logged)
    }

    pub(super) fn begin_kill(&mut self, now: Moment, todo: &mut Vec<Action>) {
        self.kill_at = None;
        self.killing = Some(Killing {
            since: now.mono,
            next: now.mono + KILL_PAUSE.0,
            pause: KILL_PAUSE.0,
            report: KillReport::default(),
            logged: false,
        });
        todo.push(Action::Kill { all: false });
    }

    /// Begins the next round, when it is due.
    pub(super) fn kill_again(&mut self, now: Moment, todo: &mut Vec<Action>) {
        let Some(killing) = &mut self.killing else { return };
        if killing.next > now.mono {
            return;
        }
        killing.pause = (killing.pause * 2).min(KILL_PAUSE.1);
        killing.next = now.mono + killing.pause;
        let late = now.mono >= killing.since + KILL_TIMEOUT;
        let (forking, unseen) = (killing.report.forking, killing.report.unseen);
        todo.push(Action::Kill { all: late && forking });
        if !late {
            return;
        }
        if !killing.logged && !self.status.needs_host_kill {
            killing.logged = true;
            let line = format!("processes outlive SIGKILL: {}", killing.report.note);
            self.status.detail = self.of_leftovers(&line);
            todo.push(Action::Say(line));
        }
        // The daemon cannot do more about processes that could be signalled: the kernel ends them
        // when it can.
        if forking || unseen {
            self.ask_for_host_kill(now, todo);
        }
    }
}
