//! The state machine (see the module above for its picture).

use std::collections::{BTreeMap, BTreeSet};

use super::view::{Slot, View};
use super::{
    Announcement, Cause, Desired, Durable, DurablePhase, Epoch, Generation, Identity, Incarnation, Observed,
    Output, Phase, Reason, Timeline, UnixNanos,
};

mod evidence;

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
    /// The incarnation of each worker that is released at `generation`, or was when the stop began.
    seats: BTreeMap<Identity, Incarnation>,
    /// Workers that are done, and the pod that they were done in.
    done: BTreeMap<Identity, String>,
    /// Failures that the Job's podFailurePolicy decides, and until when it is left to that.
    held: BTreeMap<Identity, UnixNanos>,
    timeline: Option<Timeline>,
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
            cause: durable.cause.clone(),
            seats: BTreeMap::new(),
            done: BTreeMap::new(),
            held: BTreeMap::new(),
            timeline: None,
        }
    }

    /// The desired generation.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
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
        if observed.suspended {
            self.suspend();
        } else if self.state == State::Suspended {
            self.state = State::InSync;
        }

        let view = View::new(observed, &self.done);
        self.done = view
            .slots
            .iter()
            .filter_map(|(identity, slot)| Some(((*identity).clone(), slot.done_in.clone()?)))
            .collect();
        self.adopt_reports(observed, now);

        // Each transition may enable the next one; the chain is at most the whole circle long.
        for _ in 0..6 {
            let before = self.state;
            self.advance(observed, &view, now, &mut out);
            if self.state == before {
                break;
            }
        }

        self.take_seats(observed, &view);
        self.note_started(observed, &view, now, &mut out);
        out.desired = self.desired(observed, &view);
        out.status = self.status(&observed.durable);
        out.wake_at = self.wake_at(now);
        out
    }

    /// Somebody else has written: the reconciler, which recreates Jobs on its own account when one has failed, or a former leader with its last
    /// breath. What is durable is followed.
    fn adopt_durable(&mut self, observed: &Observed, now: UnixNanos) {
        let durable = &observed.durable;
        let recreates = durable.phase == DurablePhase::Recreating;
        // The reconciler was faster, with the very generation that this group was about to write.
        let contested = durable.generation == self.generation
            && recreates
            && matches!(self.state, State::Stopping { .. } | State::Parked { .. });
        if durable.generation <= self.generation && !contested {
            return;
        }
        self.generation = durable.generation;
        self.counter = self.counter.max(durable.counter);
        self.cause.clone_from(&durable.cause);
        self.timeline = None;
        match durable.phase {
            DurablePhase::Failed => self.state = State::Failed,
            DurablePhase::Recreating => {
                self.forget_workers();
                self.state = State::Recreating;
            }
            DurablePhase::InSync | DurablePhase::Stopping => {
                if !matches!(
                    self.state,
                    State::Recovering { .. } | State::Suspended | State::Failed
                ) {
                    self.state = State::Stopping {
                        deadline: now.plus_millis(observed.policy.timeout_ms),
                    };
                }
            }
        }
    }

    /// Workers may know of a generation that its leader could not write any more. It counts; only its write is made good.
    fn adopt_reports(&mut self, observed: &Observed, now: UnixNanos) {
        if matches!(self.state, State::Failed | State::Suspended) {
            return;
        }
        let Some(highest) = observed.reports.values().map(|report| report.generation).max() else {
            return;
        };
        if highest <= self.generation {
            return;
        }
        let counter = observed
            .reports
            .values()
            .map(|report| report.counter)
            .max()
            .unwrap_or_default();
        self.counter = self.counter.max(counter);
        self.generation = highest;
        self.timeline = None;
        self.cause.get_or_insert(Cause {
            reason: Reason::ProtocolError,
            identity: None,
            pod: String::new(),
            node: String::new(),
            exit: None,
            at: None,
        });
        if !matches!(self.state, State::Recovering { .. } | State::Recreating) {
            self.state = State::Stopping {
                deadline: now.plus_millis(observed.policy.timeout_ms),
            };
        }
    }

    fn forget_workers(&mut self) {
        self.started.clear();
        self.seats.clear();
        self.done.clear();
        self.held.clear();
    }

    /// A suspended JobSet's pods are deleted by the Job controller. What comes after is a generation of its own, and is not counted.
    fn suspend(&mut self) {
        if matches!(self.state, State::Failed | State::Suspended) {
            return;
        }
        let ran = self.generation > Generation(0) && self.released == self.generation;
        if ran || !self.started.is_empty() || !self.seats.is_empty() {
            self.generation = self.generation.next();
        }
        self.forget_workers();
        self.timeline = None;
        self.state = State::Suspended;
    }

    fn advance(&mut self, observed: &Observed, view: &View<'_>, now: UnixNanos, out: &mut Output) {
        match self.state {
            State::Failed | State::Suspended => {}
            State::Recovering { until } => self.recovering(observed, view, until, now),
            State::InSync | State::Releasing { .. } => {
                if let Some(cause) = self.evidence(observed, view, now) {
                    self.restart(cause, observed, view, now, out);
                } else if let State::Releasing { deadline } = self.state {
                    if self
                        .barrier(view)
                        .all(|(_, slot)| slot.running_at(self.generation))
                    {
                        self.state = State::InSync;
                    } else if now >= deadline {
                        self.recreate(Self::cause_of(Reason::TimedOut), now, out);
                    }
                }
            }
            State::Stopping { deadline } => {
                if view.ran_at(self.generation) {
                    // Whoever led before had released this generation already, unseen until now: it cannot be a barrier any more.
                    self.generation = self.generation.next();
                }
                if view.has_done_work_in_unfinished_stage() {
                    self.recreate(Self::cause_of(Reason::WorkDone), now, out);
                } else if self
                    .barrier(view)
                    .all(|(_, slot)| slot.parked_at(self.generation))
                {
                    if let Some(timeline) = &mut self.timeline {
                        timeline.parked_at = now;
                    }
                    self.state = State::Parked { deadline };
                } else if now >= deadline {
                    self.recreate(Self::cause_of(Reason::TimedOut), now, out);
                }
            }
            State::Parked { deadline } => {
                if !self
                    .barrier(view)
                    .all(|(_, slot)| slot.parked_at(self.generation))
                {
                    self.state = State::Stopping { deadline };
                } else if self.is_durable(observed) && observed.old_pods == 0 {
                    // Time without the API server does not count, so the release has all of its own.
                    self.release(view, now, now.plus_millis(observed.policy.timeout_ms));
                }
            }
            State::Recreating => {
                // The write names the new generation before any Job is deleted; new workers wait while an old one lives.
                if self.is_durable(observed) && observed.old_pods == 0 {
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
    }

    fn recovering(&mut self, observed: &Observed, view: &View<'_>, until: UnixNanos, now: UnixNanos) {
        let heard = view
            .slots
            .values()
            .filter(|slot| slot.counts())
            .flat_map(|slot| &slot.worker.pods)
            .filter_map(|pod| pod.node.as_ref())
            .all(|node| observed.heard_nodes.contains(node));
        if !heard && now < until {
            return;
        }
        let deadline = now.plus_millis(observed.policy.timeout_ms);
        let here = |slot: &Slot<'_>| {
            slot.current
                .filter(|(_, report)| report.generation == self.generation)
                .map(|(_, report)| report.phase)
        };
        let released = view.slots.values().any(|slot| {
            matches!(
                here(slot),
                Some(Phase::Starting | Phase::Running | Phase::Exited(_))
            )
        });
        let under_way = observed.durable.phase == DurablePhase::Stopping
            || observed.durable.generation < self.generation
            || view.slots.values().any(|slot| here(slot) == Some(Phase::Parked));
        for (identity, slot) in &view.slots {
            if let Some((incarnation, report)) = slot.current
                && !matches!(report.phase, Phase::Fresh | Phase::Unlinked)
            {
                self.seats.insert((*identity).clone(), incarnation.clone());
            }
        }
        self.state = match (under_way, released) {
            (false, _) => State::InSync,
            (true, true) => State::Releasing { deadline },
            (true, false) => State::Stopping { deadline },
        };
    }

    /// The workers that a barrier waits for: all of started stages, and of others those that were released or have joined.
    fn barrier<'v, 'a>(&'v self, view: &'v View<'a>) -> impl Iterator<Item = (&'a Identity, &'v Slot<'a>)> {
        view.slots
            .iter()
            .map(|(identity, slot)| (*identity, slot))
            .filter(|(identity, slot)| {
                slot.counts()
                    && (self.started.contains(&slot.worker.stage)
                        || self.seats.contains_key(*identity)
                        || slot.current.is_some())
            })
    }

    /// Begins a counted restart, in place where that is possible.
    fn restart(
        &mut self,
        cause: Cause,
        observed: &Observed,
        view: &View<'_>,
        now: UnixNanos,
        out: &mut Output,
    ) {
        if self.counter >= observed.policy.max_restarts {
            self.cause = Some(cause.clone());
            self.state = State::Failed;
            out.announcements.push(Announcement::Exhausted { cause });
            return;
        }
        self.counter += 1;
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
        self.generation = self.generation.next();
        self.state = State::Stopping {
            deadline: now.plus_millis(observed.policy.timeout_ms),
        };
        self.cause = Some(cause.clone());
        out.announcements.push(Announcement::Restarting {
            generation: self.generation,
            cause,
        });
    }

    /// Falls back to making the Jobs anew. Not counted here: the restart that led to it was.
    fn recreate(&mut self, cause: Cause, now: UnixNanos, out: &mut Output) {
        self.generation = self.generation.next();
        self.forget_workers();
        let timeline = self.timeline.get_or_insert_with(|| Timeline {
            detected_at: now,
            failed_at: now,
            ..Timeline::default()
        });
        timeline.written_at = UnixNanos::default();
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
            .filter_map(|(identity, slot)| {
                slot.current
                    .map(|(incarnation, report)| (identity, incarnation, report))
            })
            .collect();
        let stopped_at = parked.iter().map(|(_, _, report)| report.since).max();
        let seats = parked
            .iter()
            .map(|(identity, incarnation, _)| ((*identity).clone(), (*incarnation).clone()))
            .collect();
        if let Some(timeline) = &mut self.timeline {
            timeline.stopped_at = stopped_at.unwrap_or_default();
            timeline.released_at = now;
            timeline.workers = parked.len();
        }
        self.seats = seats;
        self.held.clear();
        self.state = State::Releasing { deadline };
    }

    /// Who is released now: the workers that run or are parked at the generation, and fresh ones of stages that are still starting.
    fn take_seats(&mut self, observed: &Observed, view: &View<'_>) {
        if !self.may_release(observed) {
            return;
        }
        for (identity, slot) in &view.slots {
            let Some((incarnation, report)) = slot.current else {
                continue;
            };
            let starts = match report.phase {
                Phase::Fresh => slot.counts() && !self.started.contains(&slot.worker.stage),
                Phase::Starting | Phase::Running | Phase::Parked => report.generation == self.generation,
                _ => false,
            };
            if starts && !self.seats.contains_key(*identity) {
                self.seats.insert((*identity).clone(), incarnation.clone());
            }
        }
    }

    /// Whether workers may start at the current generation.
    fn may_release(&self, observed: &Observed) -> bool {
        matches!(self.state, State::InSync | State::Releasing { .. })
            && observed.durable.generation >= self.generation
    }

    /// Marks stages all of whose workers run or are done, and says so when that ends a restart.
    fn note_started(&mut self, observed: &Observed, view: &View<'_>, now: UnixNanos, out: &mut Output) {
        if self.state != State::InSync || !self.may_release(observed) {
            return;
        }
        let mut stages: BTreeMap<&str, bool> = BTreeMap::new();
        for (identity, slot) in &view.slots {
            let runs = slot.done || (slot.running_at(self.generation) && self.seats.contains_key(*identity));
            *stages.entry(&slot.worker.stage).or_insert(true) &= runs;
        }
        self.started.extend(
            stages
                .iter()
                .filter(|(_, runs)| **runs)
                .map(|(stage, _)| (*stage).to_owned()),
        );
        if stages.values().any(|runs| !runs) || stages.is_empty() {
            return;
        }
        self.released = self.generation;
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
        let recreated = timeline.released_at == UnixNanos::default();
        let cause = self
            .cause
            .clone()
            .unwrap_or_else(|| Self::cause_of(Reason::ProtocolError));
        out.announcements.push(Announcement::Restarted {
            timeline,
            cause,
            recreated,
        });
    }

    fn desired(&self, observed: &Observed, view: &View<'_>) -> Option<Desired> {
        if matches!(
            self.state,
            State::Recovering { .. } | State::Suspended | State::Failed
        ) {
            return None;
        }
        let release = self.may_release(observed);
        let fresh = view
            .slots
            .iter()
            .filter(|_| release)
            .filter_map(|(identity, slot)| {
                let (incarnation, report) = slot.current?;
                (report.phase == Phase::Fresh && self.seats.get(*identity) == Some(incarnation))
                    .then(|| incarnation.clone())
            })
            .collect();
        Some(Desired {
            generation: self.generation,
            counter: self.counter,
            release,
            fresh,
        })
    }

    /// What should be durable, where it differs from what is. A healthy group writes nothing; a restart writes when it begins and when it ends.
    fn status(&self, durable: &Durable) -> Option<Durable> {
        let phase = match self.state {
            State::Recovering { .. } => return None,
            State::InSync | State::Suspended => DurablePhase::InSync,
            State::Stopping { .. } | State::Parked { .. } | State::Releasing { .. } => DurablePhase::Stopping,
            State::Recreating => DurablePhase::Recreating,
            State::Failed => DurablePhase::Failed,
        };
        let starting_up = phase == DurablePhase::InSync && self.timeline.is_some();
        if starting_up {
            // Recreated, and not all run yet: the phase stays Recreating until they do.
            return None;
        }
        let wanted = Durable {
            epoch: self.epoch,
            generation: self.generation,
            released: self.released,
            counter: self.counter,
            started: self.started.clone(),
            phase,
            cause: self.cause.clone(),
        };
        // Only a write that must precede a release has to carry this leader's epoch. The cause rides along.
        let epoch_matters = matches!(
            self.state,
            State::Stopping { .. } | State::Parked { .. } | State::Recreating
        );
        let same = wanted.phase == durable.phase
            && wanted.generation == durable.generation
            && wanted.released == durable.released
            && wanted.counter == durable.counter
            && wanted.started == durable.started
            && (!epoch_matters || durable.epoch == self.epoch);
        (!same).then_some(wanted)
    }

    fn wake_at(&self, now: UnixNanos) -> Option<UnixNanos> {
        let state = match self.state {
            State::Recovering { until } => Some(until),
            State::Stopping { deadline } | State::Releasing { deadline } => Some(deadline),
            _ => None,
        };
        state
            .into_iter()
            .chain(self.held.values().copied())
            .filter(|at| *at > now)
            .min()
    }
}
