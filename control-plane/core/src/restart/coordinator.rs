//! The state machine (see the module above for its picture).

use std::collections::{BTreeMap, BTreeSet};

use alone::Apart;
use backoff::Backoff;
use escalation::Escalation;
use lockstep_mutants::{self as mutants, Mutant};

use super::blocked::Watchdog;
use super::view::{Slot, View};
use super::{
    Announcement, Cause, Durable, DurablePhase, Epoch, Generation, Identity, Incarnation, Observed, Output,
    PodFact, Reason, Rung, Scope, Timeline, UnixNanos,
};

mod alone;
mod asked;
mod backoff;
mod containers;
mod escalation;
mod evidence;
mod extras;
mod pods;
mod preview;
mod ready;
mod seats;
mod takeover;

pub use alone::ALONE_AT_ONCE;
pub use preview::{Effect, Fate, Preview, Unmoved};

/// The coordinator of one group.
#[derive(Debug, Clone)]
pub struct Coordinator {
    epoch: Epoch,
    state: State,
    generation: Generation,
    released: Generation,
    counter: u32,
    started: BTreeSet<String>,
    cause: Option<Cause>,
    /// Extras that have run, by place.
    joined: BTreeSet<String>,
    /// The incarnation of each worker that is released at `generation`, or was when the stop began.
    seats: BTreeMap<Identity, Incarnation>,
    /// Workers whose seat has a new incarnation, which has not been seen to run yet: the release names it.
    newcomers: BTreeSet<Identity>,
    /// Workers that were released and not seen since.
    unseen: BTreeSet<Identity>,
    /// Workers that are done, and the pod that they were done in.
    done: BTreeMap<Identity, String>,
    /// Failures that the Job's podFailurePolicy decides, and until when it is left to that.
    held: BTreeMap<Identity, UnixNanos>,
    timeline: Option<Timeline>,
    backoff: Backoff,
    watchdog: Watchdog,
    escalation: Escalation,
    /// Token of the latest manual request that has been acted upon.
    handled_request: Option<String>,
    /// The same of a request that names some workers.
    handled_alone: Option<String>,
    /// The API server has dropped it from the status: it is kept here alone.
    handled_is_lost: bool,
    /// The dearest rung that the latest restart has taken.
    rung: Option<Rung>,
    /// Workers that are restarted alone.
    apart: Apart,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// A new leader gathers reports; it decides nothing.
    Recovering {
        until: UnixNanos,
    },
    InSync,
    Stopping {
        deadline: UnixNanos,
    },
    /// All parked; the write is still under way.
    Parked {
        deadline: UnixNanos,
    },
    Releasing {
        deadline: UnixNanos,
    },
    Recreating,
    Suspended,
    Failed,
}

impl Coordinator {
    /// Takes over a group from what is durable. Nothing is decided before the daemons of the group have reported, or their time has run out.
    #[must_use]
    pub fn recover(epoch: Epoch, durable: &Durable, recovery_ms: u64, now: UnixNanos) -> Self {
        let state = match durable.phase {
            DurablePhase::Failed => State::Failed,
            DurablePhase::Recreating => State::Recreating,
            DurablePhase::InSync | DurablePhase::Stopping => State::Recovering {
                until: now.plus_millis(recovery_ms),
            },
        };
        Self {
            epoch,
            state,
            generation: durable.generation,
            released: durable.released,
            counter: durable.counter,
            started: durable.started.clone(),
            joined: durable.joined.clone(),
            cause: durable.cause.clone(),
            seats: BTreeMap::new(),
            newcomers: BTreeSet::new(),
            unseen: BTreeSet::new(),
            done: BTreeMap::new(),
            held: BTreeMap::new(),
            timeline: None,
            backoff: Backoff::default(),
            watchdog: Watchdog::default(),
            escalation: Escalation::default(),
            handled_request: durable.handled_request.clone(),
            handled_alone: durable.handled_alone.clone(),
            handled_is_lost: false,
            rung: durable.rung,
            apart: Apart::recover(durable),
        }
    }

    /// The desired generation.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The last generation that all workers have run.
    #[must_use]
    pub fn released(&self) -> Generation {
        self.released
    }

    /// Counted restarts so far.
    #[must_use]
    pub fn restarts(&self) -> u32 {
        self.counter
    }

    /// The dearest rung that the last restart has taken.
    #[must_use]
    pub fn rung(&self) -> Option<Rung> {
        self.rung
    }

    /// Why the last restart was begun.
    #[must_use]
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    /// Name of the present state, for logs and metrics.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        match self.state {
            State::Recovering { .. } => "Recovering",
            State::InSync => "InSync",
            State::Stopping { .. } => "Stopping",
            State::Parked { .. } => "Parked",
            State::Releasing { .. } => "Releasing",
            State::Recreating => "Recreating",
            State::Suspended => "Suspended",
            State::Failed => "Failed",
        }
    }

    /// Looks at the world and says what should be. Calling it again with the same world changes nothing.
    pub fn step(&mut self, observed: &Observed, now: UnixNanos) -> Output {
        let mut out = Output::default();
        if observed.durable.epoch > self.epoch {
            // Another leader has written: this one is deposed and says no more.
            return out;
        }
        self.adopt_durable(observed, now);
        if self.may_be_behind(observed) {
            out.status = Some(Durable {
                epoch: self.epoch,
                ..observed.durable.clone()
            });
            return out;
        }
        if observed.suspended {
            self.suspend();
        } else if self.state == State::Suspended {
            if mutants::is(Mutant::ResumeWithoutBarrier) {
                self.state = State::InSync;
            } else {
                self.resume(observed, now);
            }
        }

        self.forget_lost_extras(observed);
        self.forget_unwanted_extras(observed);
        let view = View::new(observed, &self.done, |identity| self.has_joined(identity));
        self.done = view
            .slots
            .iter()
            .filter_map(|(identity, slot)| Some(((*identity).clone(), slot.done_in.clone()?)))
            .collect();
        if !mutants::is(Mutant::IgnoreReportedGeneration) {
            self.adopt_reports(observed, now);
        }
        self.learn_alone(observed);
        self.review_alone(observed, &view, now, &mut out);
        self.escalation.tidy(&view.slots);

        // Each transition may enable the next one; the chain is at most the whole circle long.
        for _ in 0..6 {
            let before = self.state;
            self.advance(observed, &view, now, &mut out);
            if self.state == before {
                break;
            }
        }

        self.hear_request(observed, &view, now, &mut out);
        self.hear_alone_request(observed, &view, now, &mut out);
        self.tend_alone(observed, &view, now, &mut out);
        self.take_seats(observed, &view);
        self.note_started(observed, &view, now, &mut out);
        out.desired = self.desired(observed, &view);
        out.status = self.status(&observed.durable);
        out.replace = self.may_replace(&view, now);
        out.condemned = self.escalation.condemned();
        let look_again = self.look_for_blockage(observed, &view, now, &mut out);
        out.wake_at = self.wake_at(now).into_iter().chain(look_again).min();
        out
    }

    fn forget_workers(&mut self) {
        if !mutants::is(Mutant::KeepStartedOnRecreation) {
            self.started.clear();
        }
        self.joined.clear();
        self.seats.clear();
        self.newcomers.clear();
        self.unseen.clear();
        self.done.clear();
        self.held.clear();
        self.escalation = Escalation::default();
        self.apart.forget();
    }

    /// A suspended JobSet's pods are deleted by the Job controller. What comes after is a generation of its own, and is not counted.
    fn suspend(&mut self) {
        if matches!(self.state, State::Failed | State::Suspended) {
            return;
        }
        let ran = self.generation > Generation(0) && self.released == self.generation;
        if ran || !self.started.is_empty() || !self.seats.is_empty() {
            self.raise();
        }
        self.forget_workers();
        self.timeline = None;
        self.state = State::Suspended;
    }

    /// A pod of before the suspension may still live, and its worker with it: then all meet at the barrier first.
    fn resume(&mut self, observed: &Observed, now: UnixNanos) {
        let lives = observed.workers.values().any(|worker| !worker.pods.is_empty());
        if lives && self.generation == Generation(0) {
            // Nobody can be told to wait at a generation that everybody begins with.
            self.raise();
        }
        self.state = if lives {
            State::Stopping {
                deadline: now.plus_millis(observed.policy.timeout_ms),
            }
        } else {
            State::InSync
        };
    }

    fn advance(&mut self, observed: &Observed, view: &View<'_>, now: UnixNanos, out: &mut Output) {
        match self.state {
            State::Failed | State::Suspended => {}
            State::Recovering { until } => self.recovering(observed, view, until, now),
            State::InSync | State::Releasing { .. } => {
                let failures = self.evidence(observed, view, now);
                if !self.act_on(failures, observed, view, now, out)
                    && let State::Releasing { deadline } = self.state
                {
                    let all_there = self.stages_are_there(observed, view);
                    if all_there
                        && self.barrier(view).all(|(identity, slot)| {
                            self.apart.concerns(identity) || self.has_followed(identity, slot)
                        })
                    {
                        self.state = State::InSync;
                    } else if now >= deadline && !mutants::is(Mutant::IgnoreDeadline) {
                        self.recreate(Self::cause_of(Reason::TimedOut), now, out);
                    }
                }
            }
            State::Stopping { deadline } => {
                if mutants::is(Mutant::CountStaleFailures)
                    && let Some(cause) = self.evidence(observed, view, now).into_iter().next()
                {
                    return self.restart(cause, observed, view, now, out);
                }
                if view.ran_since(self.generation) {
                    // Whoever led before had released this generation already, unseen until now: it cannot be a barrier any more.
                    self.raise();
                }
                if view.has_done_work_in_unfinished_stage() {
                    self.recreate(Self::cause_of(Reason::WorkDone), now, out);
                } else if self.all_parked(observed, view) {
                    if let Some(timeline) = &mut self.timeline {
                        timeline.parked_at = now;
                    }
                    self.state = State::Parked { deadline };
                } else if self.replacement_is_late(observed, view) {
                    self.recreate(Self::cause_of(Reason::ReplacementLate), now, out);
                } else if now >= deadline && !mutants::is(Mutant::IgnoreDeadline) {
                    self.recreate(Self::cause_of(Reason::TimedOut), now, out);
                }
            }
            State::Parked { deadline } => {
                if !self.all_parked(observed, view) {
                    // They were in time. What they wait for since does not count.
                    let deadline = deadline.max(now.plus_millis(observed.policy.timeout_ms));
                    self.state = State::Stopping { deadline };
                } else if self.is_durable(observed) && observed.old_pods == 0 && self.backoff.is_over(now) {
                    // Time without the API server does not count, so the release has all of its own.
                    self.release(view, now, now.plus_millis(observed.policy.timeout_ms));
                }
            }
            State::Recreating => {
                // The write names the new generation before any Job is deleted; new workers wait while an old one lives.
                let is_alone = observed.old_pods == 0 || mutants::is(Mutant::ReleaseBesideOldPods);
                if self.is_durable(observed) && is_alone {
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
    fn is_durable(&self, observed: &Observed) -> bool {
        observed.durable.generation >= self.generation && observed.durable.epoch == self.epoch
            || mutants::is(Mutant::SkipWriteAhead)
    }

    /// The workers that a barrier waits for: all of started stages, and of others those that were released or have joined. A container without
    /// an agent has joined once its pod runs.
    fn barrier<'v, 'a>(&'v self, view: &'v View<'a>) -> impl Iterator<Item = (&'a Identity, &'v Slot<'a>)> {
        view.slots
            .iter()
            .map(|(identity, slot)| (*identity, slot))
            .filter(|(identity, slot)| {
                slot.counts()
                    && (self.started.contains(&slot.worker.stage)
                        || self.seats.contains_key(*identity)
                        || slot.current.is_some()
                        || slot.runs_unreleased())
            })
    }

    /// Whether every worker waits at the generation, in a pod that it may stay in. Where the Jobs of a stage that has started are gone they
    /// will be made again, and with them come workers to wait for. A pod that runs and that nobody reports may hold a worker that a former
    /// leader has released; not so where a container without an agent was seen to end in it.
    fn all_parked(&self, observed: &Observed, view: &View<'_>) -> bool {
        if mutants::is(Mutant::ReleaseBeforeAllParked) {
            return self
                .barrier(view)
                .any(|(_, slot)| slot.parked_at(self.generation));
        }
        let unseen = |slot: &Slot<'_>| {
            let may_run = |pod: &PodFact| {
                pod.running
                    || pod
                        .node
                        .as_ref()
                        .is_some_and(|node| !observed.heard_nodes.contains(node))
            };
            !mutants::is(Mutant::IgnoreUnseenPods)
                && slot.counts()
                && slot.current.is_none()
                && (slot.worker.rung == Rung::Process || slot.ended.is_none())
                && slot.worker.pods.iter().any(may_run)
        };
        self.stages_are_there(observed, view)
            && !view.slots.values().any(unseen)
            && self.barrier(view).all(|(identity, slot)| {
                slot.parked_at(self.generation) && !self.escalation.condemns(identity)
            })
    }

    /// Whether each stage that has started has Jobs, or has finished.
    fn stages_are_there(&self, observed: &Observed, view: &View<'_>) -> bool {
        self.started.iter().all(|stage| {
            mutants::is(Mutant::ForgetDeletedJobs)
                || observed.finished_stages.contains(stage)
                || view.slots.values().any(|slot| slot.worker.stage == *stage)
        })
    }

    /// Acts on failures, the earliest first. Whether that concerns the whole group.
    fn act_on(
        &mut self,
        failures: Vec<Cause>,
        observed: &Observed,
        view: &View<'_>,
        now: UnixNanos,
        out: &mut Output,
    ) -> bool {
        let alone = |cause: &Cause| {
            let identity = cause.identity.as_ref();
            let slot = identity.and_then(|identity| view.slots.get(identity));
            slot.is_some_and(|slot| slot.worker.scope == Scope::Worker) && !mutants::is(Mutant::StopPeersToo)
        };
        if let Some(cause) = failures.iter().find(|cause| !alone(cause)) {
            self.restart(cause.clone(), observed, view, now, out);
            return true;
        }
        if let Some(cause) = self.outgrown(view) {
            self.stop(cause, observed, view, now, out);
            return true;
        }
        for cause in failures {
            if self.apart.room() == 0 {
                break;
            }
            if self.is_exhausted(&cause, observed, out) {
                return true;
            }
            self.restart_alone(cause, observed, view, now, out);
        }
        false
    }

    /// Fails the group where maxRestarts is used up.
    fn is_exhausted(&mut self, cause: &Cause, observed: &Observed, out: &mut Output) -> bool {
        if self.counter < observed.policy.max_restarts || mutants::is(Mutant::IgnoreMaxRestarts) {
            return false;
        }
        self.cause = Some(cause.clone());
        self.state = State::Failed;
        let cause = cause.clone();
        out.announcements.push(Announcement::Exhausted { cause });
        true
    }

    /// Begins a counted restart, unless maxRestarts is used up.
    fn restart(
        &mut self,
        cause: Cause,
        observed: &Observed,
        view: &View<'_>,
        now: UnixNanos,
        out: &mut Output,
    ) {
        if self.is_exhausted(&cause, observed, out) {
            return;
        }
        self.counter += 1;
        let longest = match view.rung() {
            Rung::Process => observed.policy.max_backoff_ms,
            // Kubelet makes containers wait itself.
            _ => 0,
        };
        self.backoff.failed(&cause, longest, now);
        self.escalate(&cause, observed, view, now, out);
        self.stop(cause, observed, view, now, out);
    }

    /// Acts on a request for a restart, once. It is no failure: it counts for nothing, and where workers are being restarted or made anew
    /// anyway, or none has started yet, it is fulfilled already.
    fn hear_request(&mut self, observed: &Observed, view: &View<'_>, now: UnixNanos, out: &mut Output) {
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
    fn stop(&mut self, cause: Cause, observed: &Observed, view: &View<'_>, now: UnixNanos, out: &mut Output) {
        self.timeline = Some(Timeline {
            failed_at: cause.at.unwrap_or(now),
            detected_at: now,
            ..Timeline::default()
        });
        if view.has_done_work_in_unfinished_stage() {
            self.recreate(
                Cause {
                    reason: Reason::WorkDone,
                    ..cause
                },
                now,
                out,
            );
            return;
        }
        self.raise();
        self.rung = Some(view.rung());
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
    fn recreate(&mut self, cause: Cause, now: UnixNanos, out: &mut Output) {
        self.raise();
        self.forget_workers();
        let timeline = self.timeline.get_or_insert_with(|| Timeline {
            detected_at: now,
            failed_at: now,
            ..Timeline::default()
        });
        timeline.written_at = UnixNanos::default();
        self.rung = Some(Rung::Recreate);
        self.state = State::Recreating;
        self.cause = Some(cause.clone());
        out.announcements.push(Announcement::Recreating {
            generation: self.generation,
            cause,
        });
    }

    fn cause_of(reason: Reason) -> Cause {
        Cause {
            reason,
            identity: None,
            pod: String::new(),
            node: String::new(),
            exit: None,
            at: None,
        }
    }

    fn release(&mut self, view: &View<'_>, now: UnixNanos, deadline: UnixNanos) {
        let parked: Vec<_> = self
            .barrier(view)
            .filter_map(|(identity, slot)| Some((identity, slot.current?.0)))
            .collect();
        let stopped_at = self.barrier(view).filter_map(|(_, slot)| slot.stopped_at()).max();
        let seats = parked
            .iter()
            .map(|(identity, incarnation)| ((*identity).clone(), (*incarnation).clone()))
            .collect();
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
            self.rung = self.rung.max(Some(Rung::Pod));
        }
        self.newcomers = parked
            .iter()
            .filter(|(identity, incarnation)| {
                self.newcomers.contains(*identity) || self.seats.get(*identity) != Some(*incarnation)
            })
            .map(|(identity, _)| (*identity).clone())
            .collect();
        self.unseen = parked.iter().map(|(identity, _)| (*identity).clone()).collect();
        self.seats = seats;
        self.held.clear();
        self.backoff.released(now);
        self.apart.released(now);
        self.state = State::Releasing { deadline };
    }

    fn wake_at(&self, now: UnixNanos) -> Option<UnixNanos> {
        let state = match self.state {
            State::Recovering { until } => Some(until),
            State::Stopping { deadline } | State::Releasing { deadline } => Some(deadline),
            State::Parked { .. } => self.backoff.over_at(),
            _ => None,
        };
        state
            .into_iter()
            .chain(self.held.values().copied())
            .chain(self.apart.wake_at())
            .filter(|at| *at > now)
            .min()
    }
}
