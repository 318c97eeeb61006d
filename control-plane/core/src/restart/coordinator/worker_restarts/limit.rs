//! How many worker restarts may be under way, and which comes next.

use super::super::super::view::View;
use super::super::super::{Cause, Identity, Phase, Reason, Scope};
use super::super::Coordinator;
use super::super::step::Step;
use super::under_way::UnderWay;
use super::{WORKER_RESTARTS_AT_ONCE, WorkerRestarts};

/// How many worker restarts are reserved for workers that a daemon reports.
const RESERVED_FOR_PRESENT: usize = 64;

impl WorkerRestarts {
    /// How many restarts may begin now.
    pub(in super::super) fn room(&self) -> usize {
        WORKER_RESTARTS_AT_ONCE.saturating_sub(self.under_way.len())
    }

    /// How many restarts of unreported workers may begin now. Their pods may never find a node, and
    /// the others must not wait for that.
    pub(in super::super) fn room_for_absent(&self) -> usize {
        self.room().saturating_sub(RESERVED_FOR_PRESENT)
    }

    /// Postpones the restarts of unreported workers above their limit. They wait for their turn
    /// again.
    pub(super) fn make_room(&mut self, view: &View<'_>) {
        self.postponed.retain(|identity, restart| {
            view.slots.get(identity).is_some_and(|slot| {
                // A former leader has released it.
                let has_run = slot.current.is_some_and(|(_, report)| {
                    restart.is_reached(report)
                        && matches!(report.phase, Phase::Starting | Phase::Running | Phase::Exited(_))
                });
                slot.takes_part() && slot.worker.scope == Scope::Worker && !has_run
            })
        });
        let is_absent = |identity: &&Identity| {
            let slot = view.slots.get(identity);
            slot.is_some_and(|slot| slot.current.is_none())
        };
        // If it has ended since its release, that is another failure.
        let waits = |restart: &UnderWay| restart.is_durable() && !restart.is_released();
        let written = self.under_way.iter().filter(|(_, restart)| waits(restart));
        let absent = written.map(|(identity, _)| identity).filter(is_absent);
        let too_many: Vec<Identity> = absent
            .skip(WORKER_RESTARTS_AT_ONCE - RESERVED_FOR_PRESENT)
            .cloned()
            .collect();
        for identity in too_many {
            if let Some(restart) = self.under_way.remove(&identity) {
                self.postponed.insert(identity, restart);
            }
        }
    }

    /// The postponed restarts that may begin now.
    fn next_in_turn(&self, view: &View<'_>) -> Vec<Identity> {
        let (mut room, mut for_absent) = (self.room(), self.room_for_absent());
        let waiting = self.postponed.keys().filter(|identity| {
            let slot = view.slots.get(identity);
            let is_there = slot.is_some_and(|slot| slot.current.is_some());
            let fits = if is_there { room > 0 } else { for_absent > 0 };
            if fits {
                room = room.saturating_sub(1);
                for_absent = for_absent.saturating_sub(1);
            }
            fits
        });
        waiting.cloned().collect()
    }
}

impl Coordinator {
    /// Begins the postponed restarts within the limit, each with the next generation. They are not
    /// counted again.
    pub(in super::super) fn begin_postponed(&mut self, step: &mut Step<'_>) {
        for identity in self.worker_restarts.next_in_turn(step.view) {
            let before = self.worker_restarts.postponed.remove(&identity);
            let begun = before.and_then(|restart| restart.begun);
            let cause = begun.map_or_else(
                || Cause::unreported(Reason::PodLost, &identity),
                |begun| begun.cause,
            );
            self.begin_worker_restart(identity, cause, step);
        }
    }
}
