//! Workers without an agent: the kubelet starts their containers, and the node daemons kill those
//! of an older generation.
//!
//! The node daemon knows the generation of a container: the one for which its predecessor was
//! stopped or had ended by itself. The first container of a pod, and one whose predecessor ended at
//! the current generation, have none until the coordinator assigns it.

use lockstep_mutants::mutant;

use super::super::view::{Slot, View};
use super::super::{
    Cause, Desired, Identity, Incarnation, Observed, Phase, Reason, Report, RestartLevel, UnixNanos,
};
use super::{Coordinator, State};

impl Coordinator {
    pub(super) fn is_releasing(&self) -> bool {
        matches!(self.state, State::Releasing { .. })
    }

    /// True if a worker runs as released. A container that is out of sight may be from before the
    /// restart, or may wait for its generation, unless this leader has seen it follow.
    pub(super) fn runs_as_released(&self, identity: &Identity, slot: &Slot<'_>) -> bool {
        if !slot.running_at(self.wanted(identity)) {
            return false;
        }
        let is_released =
            || slot.current.map(|(incarnation, _)| incarnation) == self.released_in.get(identity);
        slot.worker.level != RestartLevel::Container
            || slot.seen_running()
            || is_released() && !self.newcomers.contains(identity)
    }

    /// Only a container of the current generation can fail: older ones end because they are
    /// stopped.
    pub(super) fn evidence_of_container(
        &self,
        identity: &Identity,
        slot: &Slot<'_>,
        observed: &Observed,
    ) -> Option<Cause> {
        let released = self.released_in.get(identity);
        if let Some(report) = released.and_then(|released| observed.reports.get(released))
            && let Phase::Lost(exit) = report.phase
            && report.generation == self.generation
        {
            return Some(Cause::reported(
                Reason::WorkerExited,
                identity,
                report,
                Some(exit),
            ));
        }
        let started = self.started.contains(&slot.worker.stage);
        let pods = &slot.worker.pods;
        let lost = match released {
            Some(released) => !pods.iter().any(|pod| pod.uid == released.pod_uid),
            // While a group is being released, it waits for this worker, whose pod may be replaced.
            None => started && pods.is_empty() && (!self.is_releasing() || mutant!(CountAwaited)),
        };
        if lost {
            return Some(Cause::unreported(Reason::PodLost, identity));
        }
        // The kubelet has started it again, and no daemon has seen why. While a group is being
        // released, it waits for just that.
        let (current, report) = slot.current?;
        let again = match released {
            Some(released) => current != released,
            None => started && !self.is_releasing(),
        };
        (report.phase == Phase::Fresh && again)
            .then(|| Cause::reported(Reason::ContainerLost, identity, report, None))
    }

    /// True if no container of an earlier generation is left, as far as the reports tell.
    pub(super) fn all_stopped(&self, view: &View<'_>) -> bool {
        let containers = view
            .slots
            .values()
            .filter(|slot| slot.takes_part() && slot.worker.level == RestartLevel::Container);
        containers
            .filter_map(|slot| slot.current)
            .all(|(_, report)| match report.phase {
                Phase::Fresh => true,
                Phase::Unlinked => false,
                _ => report.generation >= self.generation,
            })
    }

    /// When the last container of an earlier generation ended, as far as the reports tell.
    pub(super) fn last_stopped(&self, observed: &Observed) -> Option<UnixNanos> {
        let ended = observed.reports.values().filter(|report| {
            matches!(report.phase, Phase::Lost(_) | Phase::Done) && report.generation < self.generation
        });
        ended.map(|report| report.since).max()
    }

    /// For a new leader: the latest container of the worker, at the current generation. An ended
    /// one still needs an answer, with two exceptions. It is `absorbed` because others are still
    /// being stopped. Or it may have ended before the last of those did (`stopped_at`, by another
    /// node's clock): then the former leader has ignored it, and the kubelet starts it again.
    pub(super) fn container_before<'a>(
        &self,
        slot: &Slot<'a>,
        absorbed: bool,
        stopped_at: Option<UnixNanos>,
    ) -> Option<(&'a Incarnation, &'a Report)> {
        let last = match slot.current {
            Some(current) => Some(current).filter(|(_, report)| report.phase == Phase::Running),
            None => slot.ended.filter(|(_, report)| {
                !absorbed
                    && stopped_at
                        .is_none_or(|at| report.since > at.plus_millis(super::evidence::CLOCKS_APART_MS))
            }),
        };
        last.filter(|(_, report)| report.generation == self.generation)
    }

    /// Sorts containers without a generation during a restart. Those that began after it, or
    /// replace others, belong to the new generation. The others are stopped for it. The node's
    /// clock, which says when a container began, may be wrong. So it decides only about workers
    /// that have run in no other container.
    pub(super) fn sort_unassigned(&self, view: &View<'_>, desired: &mut Desired) {
        if !matches!(self.state, State::Stopping { .. } | State::Parked { .. }) {
            return;
        }
        let began = self
            .timeline
            .map_or(UnixNanos::default(), |timeline| timeline.detected_at);
        let containers = view
            .slots
            .iter()
            .filter(|(_, slot)| slot.takes_part() && slot.worker.level == RestartLevel::Container);
        for (identity, slot) in containers {
            let Some((incarnation, report)) = slot.current.filter(|(_, report)| report.phase == Phase::Fresh)
            else {
                continue;
            };
            let released = self.released_in.get(identity);
            let replaces = self.started.contains(&slot.worker.stage)
                || released.is_some_and(|released| released != incarnation);
            let list = if replaces && !mutant!(BelieveClocks) || report.since >= began {
                &mut desired.fresh
            } else {
                &mut desired.stale
            };
            list.insert(incarnation.clone());
        }
    }
}
