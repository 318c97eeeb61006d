//! The state machine; the parent module draws it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use backoff::Backoff;
use climb::LatestRestart;
use escalation::Escalation;
use lockstep_mutants::mutant;
use state::State;
use step::Step;
use worker_restarts::WorkerRestarts;

use super::blocked::Watchdog;
use super::step_delay::{Goal, StepDelay};
use super::view::View;
use super::{
    Cause, Durable, DurablePhase, Epoch, Generation, Identity, Incarnation, Observed, Output, RestartLevel,
    Timeline, UnixNanos,
};

mod advance;
mod backoff;
mod begin;
mod climb;
mod consequence;
mod containers;
mod escalation;
mod evidence;
mod optional;
mod pods;
mod preview;
mod released;
mod state;
mod step;
mod takeover;
mod worker_restart_request;
mod worker_restarts;

pub use preview::{Effect, Fate, Preview, Unmoved};
pub use state::GroupPhase;
pub use worker_restarts::WORKER_RESTARTS_AT_ONCE;

/// Each transition may enable the next one. A chain goes around all states once at most.
const LONGEST_CHAIN: usize = 6;

/// The coordinator of one group.
#[derive(Debug, Clone)]
pub struct Coordinator {
    epoch: Epoch,
    state: State,
    generation: Generation,
    released: Generation,
    counted_restarts: u32,
    started: BTreeSet<String>,
    cause: Option<Cause>,
    /// Optional workers that have run, by place.
    joined: BTreeSet<String>,
    /// The incarnation of each worker that is released at `generation`, or was when the stop began.
    released_in: HashMap<Identity, Incarnation>,
    /// Workers whose released incarnation is new and was not seen to run yet: the release names it.
    newcomers: HashSet<Identity>,
    /// Workers that were released and have not been seen since.
    unseen: HashSet<Identity>,
    /// Completed workers, each with the pod that it completed in.
    done: BTreeMap<Identity, String>,
    /// Failures that the Job's podFailurePolicy decides about, each with the deadline for that.
    held: BTreeMap<Identity, UnixNanos>,
    timeline: Option<Timeline>,
    backoff: Backoff,
    watchdog: Watchdog,
    escalation: Escalation,
    /// The latest restart of the group: later failures are judged by it.
    latest_restart: LatestRestart,
    /// Set while a restart in place is under way. It ends with the workers that take part.
    in_place: bool,
    /// Token of the latest manual request that has been acted upon.
    handled_request: Option<String>,
    /// The latest request to restart some workers that has been acted upon.
    handled_worker_restart: Option<String>,
    /// An old CRD has pruned that request from the status: it exists only in memory.
    handled_is_lost: bool,
    /// The highest level that the latest restart has taken.
    level: Option<RestartLevel>,
    /// Restarts of single workers.
    worker_restarts: WorkerRestarts,
}

impl Coordinator {
    /// Takes over a group from its durable state. It decides nothing until the daemons of the group
    /// have reported, or their time is up.
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
            counted_restarts: durable.counted_restarts,
            started: durable.started.clone(),
            joined: durable.joined.clone(),
            cause: durable.cause.clone(),
            released_in: HashMap::new(),
            newcomers: HashSet::new(),
            unseen: HashSet::new(),
            done: BTreeMap::new(),
            held: BTreeMap::new(),
            timeline: None,
            backoff: Backoff::default(),
            watchdog: Watchdog::default(),
            escalation: Escalation::default(),
            latest_restart: LatestRestart::recover(durable, now),
            in_place: takeover::is_in_place(durable),
            handled_request: durable.handled_request.clone(),
            handled_worker_restart: durable.handled_worker_restart.clone(),
            handled_is_lost: false,
            level: durable.level,
            worker_restarts: WorkerRestarts::recover(durable),
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
    pub fn counted_restarts(&self) -> u32 {
        self.counted_restarts
    }

    /// The highest level that the last restart has taken.
    #[must_use]
    pub fn level(&self) -> Option<RestartLevel> {
        self.level
    }

    /// Why the last restart began.
    #[must_use]
    pub fn cause(&self) -> Option<&Cause> {
        self.cause.as_ref()
    }

    /// The current phase, for logs, metrics and the platform API.
    #[must_use]
    pub fn phase(&self) -> GroupPhase {
        self.state.phase()
    }

    /// Decides the desired state. A second call with the same observation changes nothing.
    pub fn step(&mut self, observed: &Observed, now: UnixNanos) -> Output {
        let mut out = Output::default();
        if observed.durable.epoch > self.epoch {
            // Another leader has written: this one is deposed, and gives no orders.
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
            self.resume(observed, now);
        }

        self.forget_lost_optional(observed);
        self.forget_unwanted_optional(observed);
        let mut view = View::new(observed, &self.done, |identity| self.has_joined(identity));
        self.done = view
            .slots
            .iter()
            .filter_map(|(identity, slot)| Some((identity.clone(), slot.done_in.clone()?)))
            .collect();
        self.adopt_reports(observed, &view, now);
        self.learn_worker_restarts(observed);
        self.join_those_that_run(observed, &mut view);
        let mut step = Step {
            observed,
            view: &view,
            now,
            out,
        };
        self.review_worker_restarts(&mut step);
        self.escalation.tidy(&view.slots);

        for _ in 0..LONGEST_CHAIN {
            let before = self.state;
            self.advance(&mut step);
            if self.state == before {
                break;
            }
        }

        self.handle_request(&mut step);
        self.handle_worker_restart_request(&mut step);
        self.drive_worker_restarts(&mut step);
        self.begin_with_pod_mates(&mut step);
        self.note_released(observed, &view);
        self.note_started(&mut step);
        let check_at = self.find_blockage(&mut step);
        Output {
            desired: self.desired(observed, &view),
            status: self.status(&observed.durable),
            replace: self.may_replace(&view, now),
            condemned: self.condemned(&view),
            wake_at: self.wake_at(now).into_iter().chain(check_at).min(),
            step_delay: self.step_delay(&view),
            ..step.out
        }
    }

    fn forget_workers(&mut self) {
        if !mutant!(KeepStartedOnRecreation) {
            self.started.clear();
        }
        self.joined.clear();
        self.released_in.clear();
        self.newcomers.clear();
        self.unseen.clear();
        self.done.clear();
        self.held.clear();
        self.escalation = Escalation::default();
        self.latest_restart = LatestRestart::default();
        self.in_place = false;
        self.worker_restarts.forget();
    }

    /// The Job controller deletes the pods of a suspended JobSet. The next start has its own
    /// generation, and does not count.
    fn suspend(&mut self) {
        if matches!(self.state, State::Failed | State::Suspended) {
            return;
        }
        let ran = self.generation > Generation(0) && self.released == self.generation;
        if ran || !self.started.is_empty() || !self.released_in.is_empty() {
            self.raise();
        }
        self.forget_workers();
        self.timeline = None;
        self.state = State::Suspended;
    }

    /// A pod from before the suspension may still run its worker: then all workers meet at the
    /// barrier first.
    fn resume(&mut self, observed: &Observed, now: UnixNanos) {
        mutant!(ResumeWithoutBarrier => self.state = State::InSync);
        let mut lives = observed.workers.values().any(|worker| !worker.pods.is_empty());
        if lives && self.generation == Generation(0) {
            // A worker cannot park at the generation that all workers begin with.
            self.raise();
        }
        lives |= self.runs_before_its_gang(observed);
        self.state = if lives {
            State::Stopping {
                deadline: now.plus_millis(observed.policy.timeout_ms),
            }
        } else {
            State::InSync
        };
    }

    fn wake_at(&self, now: UnixNanos) -> Option<UnixNanos> {
        let state = match self.state {
            State::Recovering { until } => Some(until),
            State::Stopping { deadline } | State::Releasing { deadline } => Some(deadline),
            State::Parked { .. } | State::Recreating => self.backoff.over_at(),
            _ => None,
        };
        state
            .into_iter()
            .chain(self.held.values().copied())
            .chain(self.worker_restarts.wake_at())
            .filter(|at| *at > now)
            .min()
    }

    /// The workers whose reports change nothing until the last of them has arrived. `None` if
    /// anything else is under way: then each report needs a step.
    pub(super) fn step_delay(&self, view: &View<'_>) -> Option<StepDelay> {
        let goal = match self.state {
            State::Stopping { .. } => Goal::Parked,
            State::Releasing { .. } => Goal::Running,
            _ => return None,
        };
        if !self.worker_restarts.is_empty() || !self.held.is_empty() {
            return None;
        }
        self.barrier(view)
            .filter(|(_, slot)| slot.worker.level == RestartLevel::Process)
            .filter_map(|(_, slot)| slot.current)
            .fold(StepDelay::new(self.generation, goal), |delay, (_, report)| {
                delay.and(report)
            })
            .if_any()
    }
}
