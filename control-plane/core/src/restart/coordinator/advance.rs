//! The transitions between states: which workers the barrier waits for, and their release.

use lockstep_mutants::mutant;

use super::super::view::{Slot, View};
use super::super::{Cause, Identity, Observed, Phase, PodFact, Reason, RestartLevel, UnixNanos};
use super::step::Step;
use super::{Coordinator, State};

/// True if a deadline has passed.
fn is_over(deadline: UnixNanos, now: UnixNanos) -> bool {
    mutant!(IgnoreDeadline => false);
    now >= deadline
}

/// True if no pod from before the recreation of the Jobs is alive.
pub(super) fn old_pods_are_gone(observed: &Observed) -> bool {
    mutant!(ReleaseBesideOldPods => true);
    observed.old_pods == 0
}

impl Coordinator {
    pub(super) fn advance(&mut self, step: &mut Step<'_>) {
        let Step {
            observed, view, now, ..
        } = *step;
        match self.state {
            State::Failed | State::Suspended => {}
            State::Recovering { until } => self.recovering(step, until),
            State::InSync | State::Releasing { .. } => {
                let failures = self.evidence(step);
                if !self.answer_failures(failures, step)
                    && let State::Releasing { deadline } = self.state
                {
                    let all_there = self.stages_are_there(observed, view);
                    if all_there
                        && self.barrier(view).all(|(identity, slot)| {
                            self.worker_restarts.contains(identity) || self.runs_as_released(identity, slot)
                        })
                    {
                        self.state = State::InSync;
                        self.latest_restart.note_running(now);
                    } else if is_over(deadline, now) {
                        self.recreate(Cause::of_group(Reason::TimedOut), step);
                    }
                }
            }
            State::Stopping { deadline } => {
                if mutant!(CountStaleFailures)
                    && let Some(cause) = self.evidence(step).into_iter().next()
                {
                    return self.restart_for_failure(cause, step);
                }
                self.latest_restart.note_ended_too(view, self.generation);
                if view.ran_since(self.generation) {
                    // A former leader has released this generation, unknown to this one. It can no
                    // longer be a barrier.
                    self.raise();
                }
                if let Some(reason) = view.cannot_be_in_place() {
                    self.recreate(Cause::of_group(reason), step);
                } else if self.all_parked(observed, view) {
                    if let Some(timeline) = &mut self.timeline {
                        timeline.parked_at = now;
                    }
                    self.state = State::Parked { deadline };
                } else if self.replacement_is_late(observed, view) {
                    self.recreate(Cause::of_group(Reason::ReplacementLate), step);
                } else if is_over(deadline, now) {
                    self.recreate(Cause::of_group(Reason::TimedOut), step);
                }
            }
            State::Parked { deadline } => {
                if !self.all_parked(observed, view) {
                    // They were parked in time, so waiting for the write did not use up their time.
                    let deadline = deadline.max(step.deadline());
                    self.state = State::Stopping { deadline };
                } else if self.is_durable(observed) && observed.old_pods == 0 && self.backoff.is_over(now) {
                    // Time without the API server does not count: the release gets the full
                    // time-out.
                    self.release(step);
                }
            }
            State::Recreating => {
                // The write names the new generation before any Job is deleted. New workers wait
                // while an old one is alive.
                if self.is_durable(observed) && old_pods_are_gone(observed) && self.backoff.is_over(now) {
                    self.backoff.released(now);
                    self.state = State::InSync;
                }
            }
        }
        if let Some(timeline) = &mut self.timeline
            && timeline.written_at == UnixNanos::default()
            && observed.durable.generation >= self.generation
        {
            timeline.written_at = now;
        }
    }

    /// Durable under this leader's own epoch.
    pub(super) fn is_durable(&self, observed: &Observed) -> bool {
        mutant!(SkipWriteAhead => true);
        observed.durable.generation >= self.generation && observed.durable.epoch == self.epoch
    }

    /// The workers that a barrier waits for: all workers of started stages, and those of other
    /// stages that were released or have joined. A container without an agent has joined once its
    /// pod runs.
    pub(super) fn barrier<'v, 'a>(
        &'v self,
        view: &'v View<'a>,
    ) -> impl Iterator<Item = (&'a Identity, &'v Slot<'a>)> {
        view.slots.iter().filter(|(identity, slot)| {
            slot.takes_part()
                && (self.started.contains(&slot.worker.stage)
                    || self.released_in.contains_key(identity)
                    || slot.current.is_some()
                    || slot.runs_unreleased())
        })
    }

    /// True if every worker of the barrier is parked at the generation, in a pod that it may stay
    /// in, and no other worker may still run. A started stage without Jobs is waited for. A running
    /// pod that no daemon reports may hold a worker that a former leader has released, unless a
    /// container without an agent was seen to end in it.
    pub(super) fn all_parked(&self, observed: &Observed, view: &View<'_>) -> bool {
        mutant!(ReleaseBeforeAllParked => {
            let mut barrier = self.barrier(view);
            barrier.any(|(_, slot)| slot.parked_at(self.generation))
        });
        let may_hide_a_worker = |slot: &Slot<'_>| {
            let may_run = |pod: &PodFact| {
                pod.running
                    || pod
                        .node
                        .as_ref()
                        .is_some_and(|node| !observed.heard_nodes.contains(node))
            };
            mutant!(IgnoreUnseenPods => false);
            slot.takes_part()
                && slot.current.is_none()
                && (slot.worker.level == RestartLevel::Process || slot.ended.is_none())
                && slot.worker.pods.iter().any(may_run)
        };
        self.stages_are_there(observed, view)
            && !self.runs_before_its_gang(observed)
            && !view.slots.values().any(may_hide_a_worker)
            && self
                .barrier(view)
                .all(|(_, slot)| slot.parked_at(self.generation) && !self.escalation.condemns(slot))
    }

    /// True if a worker from before a suspension still runs while its gang waits to be bound again.
    /// That worker is not expected, but no other may start beside it.
    pub(super) fn runs_before_its_gang(&self, observed: &Observed) -> bool {
        !observed.waiting_jobs.is_empty()
            && observed.reports.values().any(|report| {
                matches!(report.phase, Phase::Starting | Phase::Running | Phase::Stopping)
                    && report.generation < self.generation
                    && observed.waiting_jobs.contains(&*report.identity.job)
            })
    }

    /// True if every started stage has Jobs or has finished.
    pub(super) fn stages_are_there(&self, observed: &Observed, view: &View<'_>) -> bool {
        mutant!(ForgetDeletedJobs => true);
        self.started.iter().all(|stage| {
            observed.finished_stages.contains(stage)
                || view.slots.values().any(|slot| slot.worker.stage == *stage)
        })
    }

    pub(super) fn release(&mut self, step: &Step<'_>) {
        let Step { view, now, .. } = *step;
        let parked: Vec<_> = self
            .barrier(view)
            .filter_map(|(identity, slot)| Some((identity, slot.current?.0)))
            .collect();
        let stopped_at = self.barrier(view).filter_map(|(_, slot)| slot.stopped_at()).max();
        let replaced = parked
            .iter()
            .filter(|(identity, incarnation)| self.is_in_another_pod(identity, incarnation))
            .count();
        if let Some(timeline) = &mut self.timeline {
            timeline.stopped_at = stopped_at.unwrap_or_default();
            timeline.released_at = now;
            timeline.workers = parked.len();
            timeline.replaced = replaced;
        }
        if replaced > 0 {
            self.level = self.level.max(Some(RestartLevel::Pod));
        }
        self.newcomers = parked
            .iter()
            .filter(|(identity, incarnation)| {
                self.newcomers.contains(*identity) || self.released_in.get(*identity) != Some(*incarnation)
            })
            .map(|(identity, _)| (*identity).clone())
            .collect();
        self.unseen = parked.iter().map(|(identity, _)| (*identity).clone()).collect();
        // Most workers keep their incarnation.
        self.released_in
            .retain(|identity, _| self.unseen.contains(identity));
        for (identity, incarnation) in parked {
            if self.released_in.get(identity) != Some(incarnation) {
                self.released_in.insert(identity.clone(), incarnation.clone());
            }
        }
        self.held.clear();
        self.backoff.released(now);
        self.worker_restarts.released(now);
        self.state = State::Releasing {
            deadline: step.deadline(),
        };
    }
}
