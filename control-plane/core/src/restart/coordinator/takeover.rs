//! Adopts what was decided elsewhere: the status that another process wrote, the generation that
//! workers have learned and, for a new leader, the state of the group.

use lockstep_mutants::mutant;

use super::super::view::{Slot, View};
use super::super::{
    Cause, Durable, DurablePhase, Generation, Observed, Phase, Reason, RestartLevel, UnixNanos,
};
use super::climb::LatestRestart;
use super::step::Step;
use super::worker_restarts::WorkerRestarts;
use super::{Coordinator, State};

/// The highest count of restarts that a status can hold.
const MOST_COUNTED: u32 = u32::MAX >> 1;

/// True if a restart in place was under way at this write. It ends with the workers that take part,
/// under any leader.
pub(super) fn is_in_place(durable: &Durable) -> bool {
    durable.phase == DurablePhase::Stopping
        && durable.level.is_some_and(|level| level < RestartLevel::Recreate)
}

impl Coordinator {
    /// Adopts a write of another process: one of the reconciler, which recreates the Jobs when one
    /// has failed, or the last write of a former leader.
    pub(super) fn adopt_durable(&mut self, observed: &Observed, now: UnixNanos) {
        let durable = &observed.durable;
        let recreates = durable.phase == DurablePhase::Recreating;
        // The reconciler was faster. It has used the generation that this leader was about to
        // write, or knows from workers.
        let contested = durable.generation == self.generation
            && recreates
            && !matches!(self.state, State::InSync | State::Recreating | State::Failed);
        if durable.generation <= self.generation && !contested {
            if durable.generation == self.generation {
                if recreates && self.state == State::Recreating {
                    // It was faster than this leader's own recreation, for a failure of its own.
                    self.counted_restarts = self.counted_restarts.max(durable.counted_restarts);
                }
                self.follow_worker_restarts(durable);
            } else if durable.latest >= self.generation {
                // A former leader has used this generation to restart a single worker.
                self.worker_restarts.latest = durable.latest;
                self.handled_worker_restart
                    .clone_from(&durable.handled_worker_restart);
                self.raise();
            }
            return;
        }
        self.adopt_generation(durable.generation);
        self.counted_restarts = self.counted_restarts.max(durable.counted_restarts);
        self.cause.clone_from(&durable.cause);
        self.level = durable.level;
        self.handled_request.clone_from(&durable.handled_request);
        self.handled_worker_restart
            .clone_from(&durable.handled_worker_restart);
        self.timeline = None;
        self.latest_restart = LatestRestart::recover(durable, now);
        self.in_place = is_in_place(durable);
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
                } else if matches!(self.state, State::Recovering { .. }) {
                    self.worker_restarts = WorkerRestarts::recover(durable);
                }
            }
        }
    }

    /// Adopts a generation that workers know, but that its leader could not write. The generation
    /// is valid, and only the write is repeated. The pods are still there, so this is a restart in
    /// place, even if that leader was about to recreate them.
    pub(super) fn adopt_reports(&mut self, observed: &Observed, view: &View<'_>, now: UnixNanos) {
        mutant!(IgnoreReportedGeneration => return);
        if matches!(self.state, State::Failed | State::Suspended) {
            return;
        }
        let Some(highest) = observed.reports.values().map(|report| report.generation).max() else {
            return;
        };
        let known = self.generation.max(self.worker_restarts.latest);
        if highest.min(Generation::LAST) <= known {
            return;
        }
        let reports = observed.reports.values();
        let reported = reports.map(|report| report.counted_restarts).max();
        // Each counted restart takes its own generation: workers can know of at most `ahead` more.
        let ahead = u32::try_from(highest.0.saturating_sub(known.0)).unwrap_or(u32::MAX);
        let most = self.counted_restarts.saturating_add(ahead).min(MOST_COUNTED);
        self.counted_restarts = self.counted_restarts.max(reported.unwrap_or_default().min(most));
        self.adopt_generation(highest);
        self.timeline = None;
        self.cause
            .get_or_insert_with(|| Cause::of_group(Reason::ProtocolError));
        if self.state == State::Recreating {
            return;
        }
        self.latest_restart = LatestRestart::in_place();
        self.in_place = true;
        self.level = Some(view.level());
        if !matches!(self.state, State::Recovering { .. }) {
            self.state = State::Stopping {
                deadline: now.plus_millis(observed.policy.timeout_ms),
            };
        }
    }

    /// True if nothing is missing that a leader needs in order to tell how far a restart has come.
    fn has_heard_all(&self, observed: &Observed, view: &View<'_>) -> bool {
        let all_heard = view
            .slots
            .values()
            .filter(|slot| slot.takes_part())
            .flat_map(|slot| &slot.worker.pods)
            .filter_map(|pod| pod.node.as_ref())
            .all(|node| observed.heard_nodes.contains(node));
        // The watch of pods may lag behind the status that records their start.
        let all_known = view
            .slots
            .values()
            .filter(|slot| slot.takes_part() && self.started.contains(&slot.worker.stage))
            .all(|slot| !slot.worker.pods.is_empty());
        // The agents of a daemon that has just started reconnect one after another.
        let mut slots = view.slots.values();
        let all_seen = !slots.any(|slot| slot.takes_part() && slot.is_out_of_sight());
        all_heard && all_known && all_seen
    }

    /// Ends the recovery of a new leader once it has heard all, or its time is up: the group is in
    /// sync, or a restart is under way.
    pub(super) fn recovering(&mut self, step: &Step<'_>, until: UnixNanos) {
        let Step {
            observed, view, now, ..
        } = *step;
        if now < until && !self.has_heard_all(observed, view) && !mutant!(DecideBeforeReports) {
            return;
        }
        let deadline = step.deadline();
        let released = self.was_released(observed, view);
        // If all have run, a parked worker has replaced a lost one, and waits for the next restart.
        let waits =
            |slot: &Slot<'_>| self.phase_here(slot) == Some(Phase::Parked) && !self.stage_has_run(slot);
        let under_way = observed.durable.phase == DurablePhase::Stopping
            || view
                .slots
                .values()
                .any(|slot| self.is_behind(slot) && !slot.leaves())
            || self.runs_before_its_gang(observed)
            || observed.durable.generation < self.generation
            || view.slots.values().any(waits);
        self.counted_restarts += u32::from(under_way && mutant!(RecountOnTakeover));
        if under_way {
            self.latest_restart.note_under_way();
        }
        let absorbed = under_way && !self.all_stopped(view);
        let stopped_at = self.last_stopped(observed).filter(|_| under_way);
        for (identity, slot) in view.slots.iter().filter(|(_, slot)| !slot.leaves()) {
            let incarnation = match slot.worker.level {
                RestartLevel::Container => self.container_before(slot, absorbed, stopped_at),
                _ => slot
                    .current
                    // A parked worker may never have run.
                    .filter(|(_, report)| {
                        !matches!(report.phase, Phase::Fresh | Phase::Parked | Phase::Unlinked)
                    }),
            };
            if let Some((incarnation, _)) = incarnation {
                self.released_in.insert(identity.clone(), incarnation.clone());
            }
        }
        self.state = match (under_way, released) {
            (false, _) => State::InSync,
            (true, true) => State::Releasing { deadline },
            (true, false) => State::Stopping { deadline },
        };
    }

    /// The phase of a worker at the current generation.
    fn phase_here(&self, slot: &Slot<'_>) -> Option<Phase> {
        slot.current
            .filter(|(_, report)| report.generation == self.generation)
            .map(|(_, report)| report.phase)
    }

    /// True if the worker is from before the JobSet was suspended, or a restart has not reached it
    /// yet.
    fn is_behind(&self, slot: &Slot<'_>) -> bool {
        slot.current.is_some_and(|(_, report)| {
            let runs = !matches!(report.phase, Phase::Fresh | Phase::Parked | Phase::Unlinked);
            runs && report.generation < self.generation
        })
    }

    /// True if the barrier of the current generation cannot have opened, whatever other reports
    /// say: a worker in sight is still behind, and the barrier would have waited for it. The status
    /// is believed if it says that the restart has ended.
    fn has_not_opened(&self, observed: &Observed, view: &View<'_>) -> bool {
        let durable = &observed.durable;
        let has_ended = durable.phase == DurablePhase::InSync && durable.generation >= self.generation;
        let is_awaited = |slot: &Slot<'_>| {
            let stays = slot.pod.is_some_and(|pod| !pod.deleting);
            slot.takes_part() && !slot.worker.optional && slot.worker.level == RestartLevel::Process && stays
        };
        !has_ended
            && view
                .slots
                .values()
                .any(|slot| is_awaited(slot) && self.is_behind(slot))
    }

    /// True if workers show that the current generation was released. The kubelet starts containers
    /// without a release, so they show it only in a group without agents.
    fn was_released(&self, observed: &Observed, view: &View<'_>) -> bool {
        let has_agent = |slot: &Slot<'_>| slot.worker.level == RestartLevel::Process;
        let have_agents = view
            .slots
            .values()
            .any(|slot| slot.takes_part() && has_agent(slot));
        let tells = |slot: &Slot<'_>| {
            mutant!(BelieveKubelet => true);
            !have_agents || has_agent(slot)
        };
        let runs = |slot: &Slot<'_>| {
            let phase = self.phase_here(slot);
            matches!(phase, Some(Phase::Starting | Phase::Running | Phase::Exited(_)))
        };
        let mut slots = view.slots.values();
        // No single worker restarts at a generation that was not released.
        !self.worker_restarts.is_empty()
            || slots.any(|slot| tells(slot) && runs(slot)) && !self.has_not_opened(observed, view)
    }

    /// True if all workers of this worker's stage were seen to run at the current generation, so
    /// that no barrier is left.
    pub(super) fn stage_has_run(&self, slot: &Slot<'_>) -> bool {
        let released = self.generation > Generation::default() && self.released == self.generation;
        released && self.started.contains(&slot.worker.stage)
    }

    /// The status to write, if it differs from the durable one. A healthy group writes nothing. A
    /// restart writes when it begins and when it ends.
    pub(super) fn status(&self, durable: &Durable) -> Option<Durable> {
        let phase = match self.state {
            State::Recovering { .. } => return None,
            State::InSync | State::Suspended => DurablePhase::InSync,
            State::Stopping { .. } | State::Parked { .. } | State::Releasing { .. } => DurablePhase::Stopping,
            State::Recreating => DurablePhase::Recreating,
            State::Failed => DurablePhase::Failed,
        };
        let latest = self.worker_restarts.latest;
        let worker_restarts = self.worker_restarts.entries();
        let starting_up = phase == DurablePhase::InSync && self.timeline.is_some();
        if starting_up
            && durable.latest.max(durable.generation) == latest
            && durable.worker_restarts == worker_restarts
        {
            // The Jobs are recreated, and not all workers run yet: the phase stays Recreating until
            // they do.
            return None;
        }
        // Worker restarts do not wait for that write.
        let (phase, started, joined) = if starting_up {
            (durable.phase, durable.started.clone(), durable.joined.clone())
        } else {
            (phase, self.started.clone(), self.joined.clone())
        };
        let wanted = Durable {
            epoch: self.epoch,
            generation: self.generation,
            latest: if latest > self.generation {
                latest
            } else {
                Generation::default()
            },
            worker_restarts,
            released: self.released,
            counted_restarts: self.counted_restarts,
            started,
            joined,
            phase,
            cause: self.cause.clone(),
            handled_request: self.handled_request.clone(),
            handled_worker_restart: self
                .handled_worker_restart
                .clone()
                .filter(|_| !self.handled_is_lost),
            level: self.level,
        };
        // Only a write that must precede a release needs this leader's epoch. The cause does not
        // trigger a write.
        let epoch_matters = matches!(
            self.state,
            State::Stopping { .. } | State::Parked { .. } | State::Recreating
        ) || !wanted.worker_restarts.is_empty();
        let same = wanted.says_the_same(durable) && (!epoch_matters || durable.epoch == self.epoch);
        (!same).then_some(wanted)
    }
}
