//! Rounds of SIGKILL, until no process of the worker's tree remains.

use std::time::Duration;

use super::{Action, KillReport, Machine, Moment, Phase};

/// How long SIGKILL may take before the agent asks the daemon for help and stops sparing sessions
/// of `kubectl exec`.
const KILL_PATIENCE: Duration = Duration::from_secs(1);
/// Time between two requests for help to the daemon, if the first was not enough: the next one
/// covers what was started since.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Bounds of the pause between two rounds of SIGKILL.
const KILL_PAUSE: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// The round of SIGKILL that is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct Killing {
    pub(super) since: Duration,
    pub(super) next: Duration,
    pub(super) pause: Duration,
    pub(super) report: KillReport,
    /// It was logged that processes outlive SIGKILL.
    pub(super) told: bool,
}

impl Machine {
    pub(super) fn on_killed(&mut self, now: Moment, report: KillReport) {
        if self.killing.is_none() {
            return;
        }
        if report.denied {
            self.ask_for_host_kill(now);
            self.status.detail = self.of_leftovers(&report.note);
        }
        let Some(killing) = &mut self.killing else { return };
        if report.forking {
            // Faster than it forks, or not at all.
            killing.next = now.mono;
        }
        killing.report = report;
    }

    /// Asks the daemon to kill what there is now, and asks again if more has been started since.
    pub(super) fn ask_for_host_kill(&mut self, now: Moment) {
        let asked = Duration::from_nanos(self.status.host_kill_before.0);
        if !self.status.needs_host_kill || Duration::from_nanos(now.boot.0) >= asked + ASK_AGAIN {
            self.status.needs_host_kill = true;
            self.status.host_kill_before = now.boot;
        }
    }

    /// A text about leftovers, after the reason for them.
    pub(super) fn of_leftovers(&self, note: &str) -> String {
        match self.status.phase {
            Phase::Exited(_) => format!("{}; {note}", self.failure),
            _ => note.to_owned(),
        }
    }

    /// True if it was reported that what remains is hard to end.
    pub(super) fn is_stuck(&self) -> bool {
        self.status.needs_host_kill || self.killing.as_ref().is_some_and(|killing| killing.told)
    }

    pub(super) fn begin_kill(&mut self, now: Moment, todo: &mut Vec<Action>) {
        self.kill_at = None;
        self.killing = Some(Killing {
            since: now.mono,
            next: now.mono + KILL_PAUSE.0,
            pause: KILL_PAUSE.0,
            report: KillReport::default(),
            told: false,
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
        let late = now.mono >= killing.since + KILL_PATIENCE;
        let (forking, unseen) = (killing.report.forking, killing.report.unseen);
        todo.push(Action::Kill { all: late && forking });
        if !late {
            return;
        }
        if !killing.told && !self.status.needs_host_kill {
            killing.told = true;
            let news = format!("processes outlive SIGKILL: {}", killing.report.note);
            self.status.detail = self.of_leftovers(&news);
            todo.push(Action::Say(news));
        }
        // The daemon cannot do more about processes that could be signalled: the kernel ends them
        // when it can.
        if forking || unseen {
            self.ask_for_host_kill(now);
        }
    }
}
