//! How a restart begins: after a failure, where one is asked for, and by making the Jobs anew.

use lockstep_mutants::{self as mutants, Mutant};

use super::super::view::View;
use super::super::{Announcement, Cause, Observed, Output, Reason, RestartLevel, Scope, Timeline, UnixNanos};
use super::climb::{Answer, Climb};
use super::{Coordinator, State};

impl Coordinator {
    /// Acts on failures, the earliest first. Whether that concerns the whole group.
    pub(super) fn answer_failures(
        &mut self,
        failures: Vec<Cause>,
        observed: &Observed,
        view: &View<'_>,
        now: UnixNanos,
        out: &mut Output,
    ) -> bool {
        let slot_of = |cause: &Cause| {
            let identity = cause.identity.as_ref();
            identity.and_then(|identity| view.slots.get(identity))
        };
        let is_of_one_worker = |cause: &Cause| {
            slot_of(cause).is_some_and(|slot| slot.worker.scope == Scope::Worker)
                && !mutants::is(Mutant::StopPeersToo)
        };
        if let Some(cause) = failures.iter().find(|cause| !is_of_one_worker(cause)) {
            self.restart(cause.clone(), observed, view, now, out);
            return true;
        }
        if let Some(cause) = self.needs_group_restart(view) {
            self.stop(cause, observed, view, now, out);
            return true;
        }
        self.begin_postponed(view, now, out);
        for cause in failures {
            let room = match slot_of(&cause).and_then(|slot| slot.current) {
                Some(_) => self.worker_restarts.room(),
                None => self.worker_restarts.room_for_absent(),
            };
            if room == 0 {
                continue;
            }
            let answer = self.answer_worker_failure(&cause, observed, view, now);
            match answer {
                Answer::Fail => {
                    self.exhaust(&cause, out);
                    return true;
                }
                Answer::Jobs(reason) => {
                    self.time(&cause, now);
                    self.recreate(Cause { reason, ..cause }, now, out);
                    return true;
                }
                Answer::Counted | Answer::Pod => {}
            }
            self.restart_worker(cause, answer, observed, view, now, out);
        }
        false
    }

    /// Fails the group: maxRestarts is used up.
    pub(super) fn exhaust(&mut self, cause: &Cause, out: &mut Output) {
        self.cause = Some(cause.clone());
        self.state = State::Failed;
        let cause = cause.clone();
        out.announcements.push(Announcement::Exhausted { cause });
    }

    /// Begins the restart that answers a failure, unless maxRestarts is used up.
    pub(super) fn restart(
        &mut self,
        cause: Cause,
        observed: &Observed,
        view: &View<'_>,
        now: UnixNanos,
        out: &mut Output,
    ) {
        let answer = self.answer(&cause, observed, view, now);
        if answer == Answer::Fail {
            return self.exhaust(&cause, out);
        }
        self.count(answer);
        let longest = match (view.level(), view.cannot_be_in_place()) {
            // Kubelet makes containers wait itself, but not new pods.
            (RestartLevel::Process, _) | (_, Some(_)) => observed.policy.max_backoff_ms,
            _ => 0,
        };
        self.backoff.failed(&cause, longest, now);
        let failed = cause.clone();
        let anew = match answer {
            Answer::Jobs(reason) => {
                self.time(&cause, now);
                return self.recreate(Cause { reason, ..cause }, now, out);
            }
            Answer::Pod => {
                self.recreate_pod(&cause, view, out);
                let reason = Reason::FailedAgain;
                self.stop(Cause { reason, ..cause }, observed, view, now, out);
                true
            }
            Answer::Counted | Answer::Fail => {
                let anew = self.escalate(&cause, observed, view, now, out);
                self.stop(cause, observed, view, now, out);
                anew
            }
        };
        if self.in_place {
            self.note_begun(&failed, anew);
        }
    }

    /// Counts the restart, where it counts.
    pub(super) fn count(&mut self, answer: Answer) {
        let counts = answer == Answer::Counted || mutants::is(Mutant::CountWhatOutlives);
        self.counter = self.counter.saturating_add(u32::from(counts));
    }

    /// From now on the time is that of another restart.
    fn time(&mut self, cause: &Cause, now: UnixNanos) {
        self.timeline = Some(Timeline {
            failed_at: cause.at.unwrap_or(now),
            detected_at: now,
            ..Timeline::default()
        });
    }

    /// Acts on a request for a restart, once. It is no failure: it counts for nothing, and where workers are being restarted or made anew
    /// anyway, or none has started yet, it is fulfilled already.
    pub(super) fn handle_request(
        &mut self,
        observed: &Observed,
        view: &View<'_>,
        now: UnixNanos,
        out: &mut Output,
    ) {
        let Some(token) = &observed.manual_request else {
            return;
        };
        if self.handled_request.as_ref() == Some(token)
            || matches!(self.state, State::Failed | State::Recovering { .. })
        {
            return;
        }
        self.handled_request = Some(token.clone());
        let mut slots = view.slots.iter();
        let runs = slots.any(|(identity, slot)| slot.running_at(self.wanted(identity)));
        if runs && matches!(self.state, State::InSync | State::Releasing { .. }) {
            self.counter += u32::from(mutants::is(Mutant::CountRequests));
            self.stop(Self::cause_of(Reason::ManualRequest), observed, view, now, out);
        }
    }

    /// Begins a restart, in place where that is possible.
    pub(super) fn stop(
        &mut self,
        cause: Cause,
        observed: &Observed,
        view: &View<'_>,
        now: UnixNanos,
        out: &mut Output,
    ) {
        self.time(&cause, now);
        if let Some(reason) = view.cannot_be_in_place() {
            return self.recreate(Cause { reason, ..cause }, now, out);
        }
        self.raise();
        self.in_place = true;
        self.climb = Climb::in_place();
        self.level = Some(view.level());
        self.state = State::Stopping {
            deadline: now.plus_millis(observed.policy.timeout_ms),
        };
        self.cause = Some(cause.clone());
        out.announcements.push(Announcement::Restarting {
            scope: Scope::Group,
            generation: self.generation,
            cause,
        });
    }

    /// Falls back to making the Jobs anew. Not counted here: the restart that led to it was.
    pub(super) fn recreate(&mut self, cause: Cause, now: UnixNanos, out: &mut Output) {
        self.raise();
        self.forget_workers();
        let timeline = self.timeline.get_or_insert_with(|| Timeline {
            detected_at: now,
            failed_at: now,
            ..Timeline::default()
        });
        timeline.written_at = UnixNanos::default();
        self.level = Some(RestartLevel::Recreate);
        self.state = State::Recreating;
        self.cause = Some(cause.clone());
        out.announcements.push(Announcement::Recreating {
            generation: self.generation,
            cause,
        });
    }

    pub(super) fn cause_of(reason: Reason) -> Cause {
        Cause {
            reason,
            identity: None,
            pod: String::new(),
            node: String::new(),
            exit: None,
            at: None,
        }
    }
}
