//! The end of the agent: signals that ask it to exit, and its exit.

use std::time::Duration;

use super::{Action, Machine, Moment, Phase};

/// How much longer than the grace of its pod Kubernetes may take to end a container: a deletion or
/// a drain may grant more, and no order may cut that short.
const GO_MARGIN: Duration = Duration::from_secs(3600);

impl Machine {
    pub(super) fn on_signal(&mut self, now: Moment, signo: i32, outside: bool, todo: &mut Vec<Action>) {
        // The image may name any signal as its STOPSIGNAL; only the runtime sends from outside.
        // SIGCONT ends nothing: it lets a stopped agent continue.
        let asks_to_exit = outside && signo != libc::SIGCONT || signo == libc::SIGTERM;
        match self.status.phase {
            Phase::Starting | Phase::Running => todo.push(Action::Forward(signo)),
            Phase::Stopping if !asks_to_exit => todo.push(Action::Forward(signo)),
            // It has had its SIGTERM; a second one means something else to many programs.
            Phase::Stopping | Phase::Done => {}
            Phase::Fresh | Phase::Parked | Phase::Exited(_) => {
                if asks_to_exit || signo == libc::SIGINT || signo == libc::SIGQUIT {
                    todo.push(Action::Say(format!(
                        "asked to exit by signal {signo} while no worker runs"
                    )));
                    self.leave_at_once(128 + signo, todo);
                }
                return;
            }
        }
        if asks_to_exit {
            self.asked_to_exit_by = Some(signo);
            self.standby.abandon(todo);
            // A worker that is being stopped ends in any case.
            if matches!(self.status.phase, Phase::Starting | Phase::Running) {
                self.supervise_again_at = self.termination_grace.map(|grace| now.mono + grace + GO_MARGIN);
            }
            if !self.is_stuck() {
                self.status.detail = format!("asked to exit by signal {signo}");
            }
        }
    }

    /// The worker still runs although its time is over: the signal was not meant for the container.
    pub(super) fn stay(&mut self, now: Moment, signo: i32, todo: &mut Vec<Action>) {
        self.asked_to_exit_by = None;
        self.supervise_again_at = None;
        self.status.detail.clear();
        self.standby.worker_runs(now);
        todo.push(Action::Say(format!(
            "asked to exit by signal {signo} but still running: the worker is supervised again"
        )));
        if let Some(target) = self.deferred.take() {
            self.on_target(now, target, todo);
        }
    }

    pub(super) fn leave_at_once(&mut self, code: i32, todo: &mut Vec<Action>) {
        self.leave(Action::Exit { code, flush: false }, todo);
    }

    pub(super) fn leave_after_report(&mut self, code: i32, todo: &mut Vec<Action>) {
        self.leave(Action::Exit { code, flush: true }, todo);
    }

    pub(super) fn leave(&mut self, exit: Action, todo: &mut Vec<Action>) {
        self.gone = true;
        self.standby.abandon(todo);
        self.say_waiting_at = None;
        self.supervise_again_at = None;
        todo.push(exit);
    }
}
