//! When the next step may wait.

use super::super::RestartLevel;
use super::super::awaited::{Awaited, Goal};
use super::super::view::View;
use super::{Coordinator, State};

impl Coordinator {
    /// The workers whose progress changes nothing before the last of them has got there. Where anything else is under way nobody is: then each change
    /// counts.
    pub(super) fn awaited(&self, view: &View<'_>) -> Option<Awaited> {
        let goal = match self.state {
            State::Stopping { .. } => Goal::Parked,
            State::Releasing { .. } => Goal::Running,
            _ => return None,
        };
        if !self.worker_restarts.is_empty() || !self.held.is_empty() {
            return None;
        }
        self.barrier(view)
            .filter(|(_, slot)| slot.worker.level == RestartLevel::Process)
            .filter_map(|(_, slot)| slot.current)
            .fold(Awaited::new(self.generation, goal), |awaited, (_, report)| {
                awaited.and(report)
            })
            .if_any()
    }
}
