//! The worker's end, and what follows from it.

use lockstep_mutants::mutant;

use super::{Action, Exit, Machine, Moment, Phase};

impl Machine {
    pub(super) fn on_start_failed(&mut self, now: Moment, code: i32, detail: String, todo: &mut Vec<Action>) {
        if self.status.phase == Phase::Starting {
            self.on_failure(now, Exit::Code(code), detail, todo);
        }
    }

    pub(super) fn on_worker_exited(&mut self, now: Moment, exit: Exit, todo: &mut Vec<Action>) {
        if !matches!(self.status.phase, Phase::Starting | Phase::Running) {
            if self.status.phase == Phase::Stopping && mutant!(ParkBesideChildren) {
                self.killing = None;
                self.park(now, todo);
            }
            return;
        }
        if self.asked_to_exit_by.is_none() && exit == Exit::Code(0) {
            self.status.phase = Phase::Done;
            self.leave_after_report(0, todo);
        } else {
            let detail = match exit {
                Exit::Code(code) => format!("worker exited with code {code}"),
                Exit::Signal(signal) => format!("worker was killed by signal {signal}"),
            };
            self.on_failure(now, exit, detail, todo);
        }
    }

    fn on_failure(&mut self, now: Moment, exit: Exit, detail: String, todo: &mut Vec<Action>) {
        if self.asked_to_exit_by.is_some() {
            // Kubernetes ends this container: its exit is no failure of the group.
            self.leave_at_once(exit.code(), todo);
            return;
        }
        let generation = self.status.generation;
        self.status.phase = Phase::Exited(exit);
        let mut terminal_codes = self.target.terminal_codes.iter();
        if terminal_codes.any(|codes| codes.matches(exit.code())) {
            let what = "the Job's podFailurePolicy names this code: the container exits with it";
            todo.push(Action::Say(format!("{detail} (generation {generation}); {what}")));
            self.leave_after_report(exit.code(), todo);
        } else {
            // Without the agent the rest of the tree would have died with the container.
            self.begin_kill(now, todo);
            todo.push(Action::Say(format!(
                "{detail} (generation {generation}); waiting for the group to restart"
            )));
        }
        self.failure.clone_from(&detail);
        self.status.detail = detail;
    }
}
