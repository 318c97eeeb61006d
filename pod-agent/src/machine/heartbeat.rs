//! The heartbeat of a running worker, as far as it is reported.

use super::{Action, Heartbeat, Machine, Moment, Phase};

impl Machine {
    /// The worker is left unchanged: the control plane decides if the group restarts.
    pub(super) fn on_heartbeat(&mut self, now: Moment, heartbeat: Heartbeat, todo: &mut Vec<Action>) {
        let before = self.status.heartbeat;
        let timeout = self.heartbeat_timeout();
        if self.status.phase != Phase::Running || timeout.is_zero() || heartbeat == before {
            return;
        }
        self.status.heartbeat = heartbeat;
        if heartbeat == Heartbeat::Well {
            self.standby.worker_is_up(now);
        }
        let generation = self.status.generation;
        let line = match heartbeat {
            Heartbeat::Missed => format!(
                "no heartbeat for {timeout:?} (generation {generation}); waiting for the group to restart"
            ),
            Heartbeat::Overdue => format!(
                "no first heartbeat within {:?} (generation {generation}); waiting for the group to restart",
                self.target.ready_timeout
            ),
            Heartbeat::Well if before.is_late() => "the heartbeat is back".to_owned(),
            Heartbeat::Well | Heartbeat::Awaited => return,
        };
        todo.push(Action::Say(line));
    }
}
