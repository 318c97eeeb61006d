//! Which incarnation of each worker is released, and when a stage has started.

use std::collections::{BTreeMap, BTreeSet};

use lockstep_mutants::mutant;

use super::super::view::{Slot, View};
use super::super::{Announcement, Cause, Desired, Observed, Phase, Reason, RestartLevel, Scope};
use super::advance::old_pods_are_gone;
use super::step::Step;
use super::{Coordinator, State};

impl Coordinator {
    /// Notes which incarnations are released now: those that run or are parked at the generation,
    /// and fresh ones of stages that are still starting.
    pub(super) fn note_released(&mut self, observed: &Observed, view: &View<'_>) {
        if !self.may_release(observed) {
            return;
        }
        for (identity, slot) in view.slots.iter() {
            let Some((incarnation, report)) = slot.current else {
                continue;
            };
            if self.worker_restarts.contains(identity) {
                continue;
            }
            let container = slot.worker.level == RestartLevel::Container;
            // A late worker joins only while the group waits for nothing.
            if slot.absent && !(slot.may_join() && self.state == State::InSync) {
                continue;
            }
            if slot.absent
                && matches!(report.phase, Phase::Exited(_))
                && report.generation == self.wanted(identity)
            {
                // It has run, and failed while it was not wanted for a moment. It restarts like any
                // other.
                self.joined.insert(identity.place());
            }
            let starts = match report.phase {
                Phase::Fresh => {
                    slot.absent
                        || slot.takes_part()
                            && (!self.started.contains(&slot.worker.stage)
                                || container && self.is_releasing())
                }
                Phase::Starting | Phase::Running | Phase::Parked => {
                    report.generation == self.wanted(identity)
                }
                _ => false,
            };
            // A container with a successor at the same generation has ended, and that was handled.
            let follows = container && report.phase == Phase::Running;
            if starts && (follows || !self.released_in.contains_key(identity)) {
                if container && report.phase == Phase::Fresh && slot.ended.is_none() && self.is_releasing() {
                    self.note_replaced(slot);
                }
                self.released_in.insert(identity.clone(), incarnation.clone());
                self.newcomers.insert(identity.clone());
            }
            if matches!(report.phase, Phase::Starting | Phase::Running) {
                self.newcomers.remove(identity);
                if slot.worker.optional && report.generation == self.wanted(identity) {
                    self.joined.insert(identity.place());
                }
            }
            if !matches!(report.phase, Phase::Parked | Phase::Unlinked) {
                self.unseen.remove(identity);
            }
        }
    }

    /// Notes that a container without an agent has started in another pod than before.
    fn note_replaced(&mut self, slot: &Slot<'_>) {
        if !self.started.contains(&slot.worker.stage) {
            return;
        }
        self.level = self.level.max(Some(RestartLevel::Pod));
        if let Some(timeline) = &mut self.timeline {
            timeline.replaced += 1;
        }
    }

    /// True if workers may start at the current generation. None may while a pod from before a
    /// recreation is alive.
    ///
    /// The epoch of the write does not matter here. A barrier opens under this leader's own epoch
    /// ([`Self::is_durable`]). Without a barrier each leader would let the same incarnations start
    /// at the same generation, once.
    pub(super) fn may_release(&self, observed: &Observed) -> bool {
        matches!(self.state, State::InSync | State::Releasing { .. })
            && (observed.durable.generation >= self.generation || mutant!(SkipWriteAhead))
            && old_pods_are_gone(observed)
    }

    /// Marks stages whose workers all run or are done, and announces the end of a restart.
    pub(super) fn note_started(&mut self, step: &mut Step<'_>) {
        let Step {
            observed, view, now, ..
        } = *step;
        if self.state != State::InSync || !self.may_release(observed) {
            return;
        }
        // A restart in place ends with the workers that take part in it. A worker of a stage that
        // has never started takes part once it comes.
        let in_place = self.in_place && !mutant!(WaitForUnstarted);
        let mut waits = false;
        let mut takes_part = false;
        let mut stages: BTreeMap<&str, bool> = BTreeMap::new();
        for (identity, slot) in view.slots.iter() {
            // A worker that has run before may be out of sight. At its first start it must be seen.
            let seen =
                self.started.contains(&slot.worker.stage) || slot.seen_running() || mutant!(StartedUnseen);
            let is_released = self.released_in.contains_key(identity);
            let is_restarting = self.worker_restarts.contains(identity);
            let runs = slot.done
                || slot.absent
                || is_restarting
                || (seen && is_released && slot.running_at(self.wanted(identity)));
            let is_part = is_released || slot.current.is_some() || self.started.contains(&slot.worker.stage);
            takes_part |= is_part;
            waits |= !runs && (is_part || !in_place);
            *stages.entry(&slot.worker.stage).or_insert(true) &= runs;
        }
        self.started.extend(
            stages
                .iter()
                .filter(|(_, runs)| **runs)
                .map(|(stage, _)| (*stage).to_owned()),
        );
        if waits || stages.is_empty() || in_place && !takes_part {
            return;
        }
        // A worker that has been out of sight since its release may not know of it.
        let all_seen = view.slots.iter().all(|(identity, slot)| {
            !slot.takes_part() || !self.unseen.contains(identity) && !self.newcomers.contains(identity)
        });
        if all_seen {
            self.released = self.generation;
            self.in_place = false;
        }
        let Some(mut timeline) = self.timeline.take() else {
            return;
        };
        let running: Vec<_> = view.slots.values().filter_map(|slot| slot.current).collect();
        timeline.generation = self.generation;
        timeline.running_at = running
            .iter()
            .map(|(_, report)| report.since)
            .max()
            .unwrap_or(now);
        timeline.workers = running.len();
        timeline.note_starts(running.iter().map(|(_, report)| *report));
        let cause = self
            .cause
            .clone()
            .unwrap_or_else(|| Cause::of_group(Reason::ProtocolError));
        step.announce(Announcement::Restarted {
            scope: Scope::Group,
            timeline,
            cause,
            level: self.level.unwrap_or_default(),
        });
    }

    pub(super) fn desired(&self, observed: &Observed, view: &View<'_>) -> Option<Desired> {
        if matches!(
            self.state,
            State::Recovering { .. } | State::Suspended | State::Failed
        ) {
            return None;
        }
        let release = self.may_release(observed);
        let fresh = self
            .newcomers
            .iter()
            .filter(|_| release)
            .filter_map(|identity| {
                let (incarnation, report) = view.slots.get(identity)?.current?;
                let waits = matches!(report.phase, Phase::Fresh | Phase::Parked);
                (waits && self.released_in.get(identity) == Some(incarnation)).then(|| incarnation.clone())
            })
            .collect();
        let mut desired = Desired {
            generation: self.generation,
            counted_restarts: self.counted_restarts,
            release,
            fresh,
            stale: BTreeSet::new(),
            worker_restarts: self.desired_worker_restarts(view),
        };
        self.sort_unassigned(view, &mut desired);
        Some(desired)
    }
}
