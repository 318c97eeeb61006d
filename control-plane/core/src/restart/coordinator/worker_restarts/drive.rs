//! The steps of a worker restart: it begins, the worker gets its order and its release, and it
//! ends.

use std::collections::BTreeMap;

use lockstep_mutants::mutant;

use super::super::super::view::View;
use super::super::super::{
    Announcement, Cause, Identity, Incarnation, Phase, Reason, RestartLevel, Scope, Timeline, WorkerRestart,
};
use super::super::Coordinator;
use super::super::climb::{LatestRestart, Recreated};
use super::super::consequence::Consequence;
use super::super::step::Step;
use super::under_way::{Begun, UnderWay};

impl Coordinator {
    /// Follows the restarts that are under way, before any failure is judged.
    pub(in super::super) fn review_worker_restarts(&mut self, step: &mut Step<'_>) {
        let Step {
            observed, view, now, ..
        } = *step;
        let mut under_way = std::mem::take(&mut self.worker_restarts.under_way);
        under_way.retain(|identity, restart| {
            let Some(slot) = view.slots.get(identity) else {
                // Its Job is missing, or the worker is gone for good.
                return now < *restart.deadline.get_or_insert(step.deadline());
            };
            let lost_scope =
                restart.is_requested() && !restart.is_durable() && slot.worker.scope == Scope::Group;
            if !slot.takes_part() || lost_scope {
                return false;
            }
            if let Some((incarnation, report)) = slot.current.filter(|(_, report)| restart.is_reached(report))
            {
                match report.phase {
                    // Its pod is condemned anyway, as a part of this restart.
                    _ if self.escalation.condemns(slot) => {}
                    Phase::Running => {
                        step.out
                            .announcements
                            .extend(restart.restarted(incarnation, report));
                        return false;
                    }
                    // A former leader has released it.
                    Phase::Starting | Phase::Exited(_) if !restart.is_released() => {
                        restart.release(now);
                        self.released_in.insert(identity.clone(), incarnation.clone());
                    }
                    _ => {}
                }
            }
            let released = self.released_in.get(identity);
            let is_released = slot
                .current
                .is_some_and(|(incarnation, _)| Some(incarnation) == released);
            let ended = released.and_then(|released| observed.reports.get(released));
            let has_ended = ended
                .is_some_and(|report| matches!(report.phase, Phase::Lost(_)) && restart.is_reached(report));
            if restart.is_released() && !is_released && !has_ended {
                // It was lost before it ran, which this restart covers.
                restart.wait_for_next_incarnation();
            }
            true
        });
        self.worker_restarts.under_way = under_way;
        self.worker_restarts
            .latest_restarts
            .retain(|identity, _| view.slots.contains_key(identity));
        self.worker_restarts.make_room(view);
    }

    /// Begins the restart of the failed worker.
    pub(in super::super) fn restart_worker(
        &mut self,
        cause: Cause,
        consequence: Consequence,
        step: &mut Step<'_>,
    ) {
        let Some(identity) = cause.identity.clone() else {
            return;
        };
        self.count(consequence);
        let of_group = &self.backoff;
        let backoffs = self.worker_restarts.backoffs.entry(identity.clone());
        let backoff = backoffs.or_insert_with(|| of_group.of_one());
        backoff.failed(&cause, step.observed.policy.max_backoff_ms, step.now);
        let failed = cause.clone();
        let (recreated, cause) = if consequence == Consequence::Pod {
            self.condemn_pod(&cause, step);
            let reason = Reason::FailedAgain;
            (Recreated::Pod, Cause { reason, ..cause })
        } else {
            (self.escalate(&cause, step), cause)
        };
        self.begin_worker_restart(identity.clone(), cause, step);
        self.note_worker_restart_begun(&identity, &failed, recreated);
        let restart = self.worker_restarts.under_way.get_mut(&identity);
        if let Some(begun) = restart.and_then(|restart| restart.begun.as_mut()) {
            begun.counted = consequence == Consequence::Counted;
        }
    }

    /// Begins a restart of this worker with the next generation. It is not counted.
    pub(in super::super) fn begin_worker_restart(
        &mut self,
        identity: Identity,
        cause: Cause,
        step: &mut Step<'_>,
    ) {
        let generation = self.worker_restarts.latest.max(self.generation).next();
        self.worker_restarts.latest = generation;
        if self.timeline.is_none() {
            let has_new_pod = matches!(cause.reason, Reason::PodLost | Reason::FailedAgain);
            self.level = Some(if has_new_pod {
                RestartLevel::Pod
            } else {
                RestartLevel::Process
            });
            self.cause = Some(cause.clone());
        }
        step.announce(Announcement::Restarting {
            scope: Scope::Worker,
            generation,
            cause: cause.clone(),
        });
        let pod = self
            .released_in
            .get(&identity)
            .map(|released| released.pod_uid.clone());
        let begun = Begun {
            timeline: Timeline {
                generation,
                failed_at: cause.at.unwrap_or(step.now),
                detected_at: step.now,
                workers: 1,
                ..Timeline::default()
            },
            cause,
            pod: pod.unwrap_or_default(),
            counted: false,
        };
        let mut restart = UnderWay::new(generation);
        restart.begun = Some(begun);
        self.worker_restarts
            .set_latest_restart(&identity, LatestRestart::in_place());
        self.worker_restarts.under_way.insert(identity, restart);
    }

    /// Sends orders and releases to the workers whose restart is durable, and condemns pods in
    /// which they do not start.
    pub(in super::super) fn drive_worker_restarts(&mut self, step: &mut Step<'_>) {
        let Step {
            observed, view, now, ..
        } = *step;
        if !self.may_release(observed) {
            return;
        }
        let mut under_way = std::mem::take(&mut self.worker_restarts.under_way);
        let mut is_stuck = false;
        for (identity, restart) in &mut under_way {
            if !restart.is_durable() && !mutant!(SkipWriteAhead) {
                continue;
            }
            self.worker_restarts
                .assigned
                .insert(identity.clone(), restart.generation);
            restart.note_written(now);
            let Some(slot) = view.slots.get(identity) else {
                continue;
            };
            let Some((incarnation, _)) = slot.current.filter(|(_, report)| report.phase != Phase::Unlinked)
            else {
                restart.deadline = None;
                continue;
            };
            let deadline = step.deadline();
            if self.escalation.condemns(slot) {
                restart.wait_for_next_incarnation();
            } else if !restart.is_released() {
                let backoff = self.worker_restarts.backoffs.entry(identity.clone()).or_default();
                if backoff.is_over(now) {
                    backoff.released(now);
                    restart.release(now);
                    let latest = self.worker_restarts.latest_restarts.entry(identity.clone());
                    latest.or_insert_with(LatestRestart::in_place).note_running(now);
                    restart.deadline = Some(deadline);
                    self.released_in.insert(identity.clone(), incarnation.clone());
                    self.newcomers.insert(identity.clone());
                    self.unseen.insert(identity.clone());
                }
            } else if now >= *restart.deadline.get_or_insert(deadline) {
                restart.wait_for_next_incarnation();
                restart.moves = restart.moves.saturating_add(1);
                is_stuck |= slot.worker.keeps_pod;
                let condemned = self.escalation.condemn(identity, slot);
                step.out
                    .announcements
                    .extend(condemned.map(|condemned| Announcement::Escalated {
                        condemned,
                        after: None,
                    }));
            }
        }
        self.worker_restarts.under_way = under_way;
        if is_stuck {
            // It can neither run in its pod nor move: without the pod its Job would fail.
            self.recreate(Cause::of_group(Reason::TimedOut), step);
        }
    }

    /// The cause of a restart that is under way, if its worker no longer has its own scope: its
    /// node daemon does not support scopes.
    pub(in super::super) fn needs_group_restart(&self, view: &View<'_>) -> Option<Cause> {
        self.worker_restarts
            .under_way
            .iter()
            .find_map(|(identity, restart)| {
                let slot = view.slots.get(identity)?;
                let begun = restart.begun.as_ref();
                (slot.worker.scope == Scope::Group).then(|| {
                    begun.map_or_else(
                        || Cause::unreported(Reason::ContainerLost, identity),
                        |begun| begun.cause.clone(),
                    )
                })
            })
    }

    /// The orders for the incarnations of restarted workers.
    pub(in super::super) fn desired_worker_restarts(
        &self,
        view: &View<'_>,
    ) -> BTreeMap<Incarnation, WorkerRestart> {
        let assigned = self.worker_restarts.assigned.iter();
        assigned
            .filter_map(|(identity, generation)| {
                let slot = view.slots.get(identity)?;
                // An ended incarnation gets an order too: its node may have started the next one
                // without an agent, and then stops it.
                let (incarnation, report) = slot.current.or(slot.ended)?;
                let ended = matches!(report.phase, Phase::Lost(_));
                let restart = WorkerRestart {
                    generation: *generation,
                    release: !self.worker_restarts.covers(identity) && !ended,
                };
                Some((incarnation.clone(), restart))
            })
            .collect()
    }
}
