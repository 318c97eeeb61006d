//! How a restart begins: after a failure, on request, and as a recreation of the Jobs.

use lockstep_mutants::mutant;

use super::super::{Announcement, Cause, Reason, RestartLevel, Scope, Timeline, UnixNanos};
use super::climb::{LatestRestart, Recreated};
use super::consequence::Consequence;
use super::step::Step;
use super::{Coordinator, State};

impl Coordinator {
    /// Acts on failures, the earliest first. Returns true if that affects the whole group.
    pub(super) fn answer_failures(&mut self, failures: Vec<Cause>, step: &mut Step<'_>) -> bool {
        let is_of_one_worker = |cause: &Cause| {
            step.slot_of(cause)
                .is_some_and(|slot| slot.worker.scope == Scope::Worker)
                && !mutant!(StopPeersToo)
        };
        if let Some(cause) = failures.iter().find(|cause| !is_of_one_worker(cause)) {
            self.restart_for_failure(cause.clone(), step);
            return true;
        }
        if let Some(cause) = self.needs_group_restart(step.view) {
            self.begin_restart(cause, step);
            return true;
        }
        self.begin_postponed(step);
        for cause in failures {
            let room = match step.slot_of(&cause).and_then(|slot| slot.current) {
                Some(_) => self.worker_restarts.room(),
                None => self.worker_restarts.room_for_absent(),
            };
            if room == 0 {
                continue;
            }
            let consequence = self.worker_consequence(&cause, step);
            match consequence {
                Consequence::Fail => {
                    self.fail_exhausted(&cause, step);
                    return true;
                }
                Consequence::Jobs(reason) => {
                    self.start_timeline(&cause, step.now);
                    self.recreate(Cause { reason, ..cause }, step);
                    return true;
                }
                Consequence::Counted | Consequence::Pod => {}
            }
            self.restart_worker(cause, consequence, step);
        }
        false
    }

    /// Fails the group: maxRestarts is used up.
    pub(super) fn fail_exhausted(&mut self, cause: &Cause, step: &mut Step<'_>) {
        self.cause = Some(cause.clone());
        self.state = State::Failed;
        let cause = cause.clone();
        step.announce(Announcement::Exhausted { cause });
    }

    /// Begins the restart that answers a failure, unless maxRestarts is used up.
    pub(super) fn restart_for_failure(&mut self, cause: Cause, step: &mut Step<'_>) {
        let Step {
            observed, view, now, ..
        } = *step;
        let consequence = self.consequence(&cause, step);
        if consequence == Consequence::Fail {
            return self.fail_exhausted(&cause, step);
        }
        self.count(consequence);
        let longest = match (view.level(), view.cannot_be_in_place()) {
            // The kubelet delays containers itself, but not new pods.
            (RestartLevel::Process, _) | (_, Some(_)) => observed.policy.max_backoff_ms,
            _ => 0,
        };
        self.backoff.failed(&cause, longest, now);
        let failed = cause.clone();
        let recreated = match consequence {
            Consequence::Jobs(reason) => {
                self.start_timeline(&cause, now);
                return self.recreate(Cause { reason, ..cause }, step);
            }
            Consequence::Pod => {
                self.condemn_pod(&cause, step);
                let reason = Reason::FailedAgain;
                self.begin_restart(Cause { reason, ..cause }, step);
                Recreated::Pod
            }
            Consequence::Counted | Consequence::Fail => {
                let recreated = self.escalate(&cause, step);
                self.begin_restart(cause, step);
                recreated
            }
        };
        if self.in_place {
            self.note_begun(&failed, recreated);
        }
    }

    /// Counts the restart if it counts.
    pub(super) fn count(&mut self, consequence: Consequence) {
        let counts = consequence == Consequence::Counted || mutant!(CountWhatOutlives);
        self.counted_restarts = self.counted_restarts.saturating_add(u32::from(counts));
    }

    /// Starts the timeline of another restart.
    fn start_timeline(&mut self, cause: &Cause, now: UnixNanos) {
        self.timeline = Some(Timeline {
            failed_at: cause.at.unwrap_or(now),
            detected_at: now,
            ..Timeline::default()
        });
    }

    /// Acts on a request for a restart, once. The restart does not count. Nothing is left to do if
    /// workers restart anyway, if the Jobs are being recreated, or if no worker has started yet.
    pub(super) fn handle_request(&mut self, step: &mut Step<'_>) {
        let Some(token) = &step.observed.manual_request else {
            return;
        };
        if self.handled_request.as_ref() == Some(token)
            || matches!(self.state, State::Failed | State::Recovering { .. })
        {
            return;
        }
        self.handled_request = Some(token.clone());
        let mut slots = step.view.slots.iter();
        let runs = slots.any(|(identity, slot)| slot.running_at(self.wanted(identity)));
        if runs && matches!(self.state, State::InSync | State::Releasing { .. }) {
            self.counted_restarts += u32::from(mutant!(CountRequests));
            self.begin_restart(Cause::of_group(Reason::ManualRequest), step);
        }
    }

    /// Begins a restart, in place if that is possible.
    pub(super) fn begin_restart(&mut self, cause: Cause, step: &mut Step<'_>) {
        self.start_timeline(&cause, step.now);
        if let Some(reason) = step.view.cannot_be_in_place() {
            return self.recreate(Cause { reason, ..cause }, step);
        }
        self.raise();
        self.in_place = true;
        self.latest_restart = LatestRestart::in_place();
        self.level = Some(step.view.level());
        self.state = State::Stopping {
            deadline: step.deadline(),
        };
        self.cause = Some(cause.clone());
        step.announce(Announcement::Restarting {
            scope: Scope::Group,
            generation: self.generation,
            cause,
        });
    }

    /// Falls back to recreating the Jobs. It does not count: the restart before it did.
    pub(super) fn recreate(&mut self, cause: Cause, step: &mut Step<'_>) {
        self.raise();
        self.forget_workers();
        let timeline = self.timeline.get_or_insert_with(|| Timeline {
            detected_at: step.now,
            failed_at: step.now,
            ..Timeline::default()
        });
        timeline.written_at = UnixNanos::default();
        self.level = Some(RestartLevel::Recreate);
        self.state = State::Recreating;
        self.cause = Some(cause.clone());
        step.announce(Announcement::Recreating {
            generation: self.generation,
            cause,
        });
    }
}
