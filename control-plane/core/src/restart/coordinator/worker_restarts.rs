//! Workers that are restarted alone (`lockstep.dev/restart-scope: worker`): no barrier, and nobody else is touched.
//!
//! ```text
//!           fails              durable under this leader         seen to run at x
//!  runs ───────────> counted(x) ───────────────────────> told(x) ────────────────> runs
//!                        ^                                  │ fails at x
//!                        └──────────────────────────────────┘
//! ```
//!
//! Promises: nobody is told anything before the generation and the worker that it is for are durable, so what could not be written never was;
//! while a restart is under way only an end at its own generation counts; a restart of the group ends all of them.

use std::collections::BTreeMap;

use lockstep_mutants::{self as mutants, Mutant};

use super::super::view::View;
use super::super::{
    Announcement, Cause, Durable, Generation, Identity, Incarnation, Observed, Phase, Reason, Report,
    RestartLevel, Scope, Timeline, UnixNanos, WorkerRestart,
};
use super::Coordinator;
use super::backoff::Backoff;
use super::climb::{Answer, Climb, Recreated};
use super::step::Step;

mod limit;
mod pod_mates;

/// Workers of a group that are restarted alone at the same time, at most: all of them stand in the status.
pub const WORKER_RESTARTS_AT_ONCE: usize = 256;

/// What is known of the workers that were restarted alone since the last restart of all.
#[derive(Debug, Clone, Default)]
pub(super) struct WorkerRestarts {
    /// The highest generation given, to all or to one.
    pub(super) latest: Generation,
    /// What each of them should run, as far as it may be told.
    assigned: BTreeMap<Identity, Generation>,
    /// Restarts that are under way.
    under_way: BTreeMap<Identity, UnderWay>,
    /// Restarts that have begun, and wait for their turn again since nobody reports their workers any more.
    postponed: BTreeMap<Identity, UnderWay>,
    backoffs: BTreeMap<Identity, Backoff>,
    /// What the latest restart of each alone, since that of all, has made anew.
    climbs: BTreeMap<Identity, Climb>,
}

#[derive(Debug, Clone)]
struct UnderWay {
    generation: Generation,
    /// Durable under this leader's epoch.
    durable: bool,
    /// This leader has begun it because it was asked for.
    asked: bool,
    /// This leader has counted it.
    counted: bool,
    /// How many pods this leader has had deleted in which it did not come up.
    moves: u32,
    /// An incarnation is released at this generation.
    released: bool,
    /// Since it was released, and in sight: when it should be up. While nobody expects the worker: until when it may come back.
    deadline: Option<UnixNanos>,
    /// Why and when it began; none where another leader has begun it.
    begun: Option<Begun>,
}

#[derive(Debug, Clone)]
struct Begun {
    cause: Cause,
    timeline: Timeline,
    /// UID of the pod that it failed in.
    pod: String,
}

impl UnderWay {
    fn new(generation: Generation) -> Self {
        Self {
            generation,
            durable: false,
            asked: false,
            counted: false,
            moves: 0,
            released: false,
            deadline: None,
            begun: None,
        }
    }

    fn is_reached(&self, report: &Report) -> bool {
        report.generation >= self.generation
    }

    fn written(&mut self, now: UnixNanos) {
        if let Some(begun) = &mut self.begun
            && begun.timeline.written_at == UnixNanos::default()
        {
            begun.timeline.written_at = now;
        }
    }

    fn release(&mut self, now: UnixNanos) {
        self.released = true;
        if let Some(begun) = &mut self.begun {
            begun.timeline.released_at = now;
        }
    }

    /// Its worker waits for another incarnation.
    fn wait_for_next_incarnation(&mut self) {
        self.released = false;
        self.deadline = None;
    }

    /// What to tell people once the worker runs.
    fn restarted(&self, incarnation: &Incarnation, report: &Report) -> Option<Announcement> {
        let begun = self.begun.as_ref()?;
        let replaced = incarnation.pod_uid != begun.pod;
        Some(Announcement::Restarted {
            scope: Scope::Worker,
            timeline: Timeline {
                running_at: report.since,
                replaced: usize::from(replaced),
                ..begun.timeline
            },
            cause: begun.cause.clone(),
            level: if replaced {
                RestartLevel::Pod
            } else {
                RestartLevel::Process
            },
        })
    }
}

impl WorkerRestarts {
    /// What a new leader finds.
    pub(super) fn recover(durable: &Durable) -> Self {
        let mut worker_restarts = Self {
            latest: durable.latest.max(durable.generation),
            ..Self::default()
        };
        if !mutants::is(Mutant::ForgetWorkerRestarts) {
            for (identity, generation) in &durable.worker_restarts {
                worker_restarts
                    .under_way
                    .insert(identity.clone(), UnderWay::new(*generation));
            }
        }
        worker_restarts
    }

    /// The group has another generation: all workers have that.
    pub(super) fn absorb(&mut self, generation: Generation) {
        self.latest = self.latest.max(generation);
        self.assigned.clear();
        self.under_way.clear();
        self.postponed.clear();
        self.climbs.clear();
    }

    /// The Jobs are made anew.
    pub(super) fn forget(&mut self) {
        self.assigned.clear();
        self.under_way.clear();
        self.postponed.clear();
        self.backoffs.clear();
        self.climbs.clear();
    }

    /// What the latest restart of this worker alone has made anew.
    pub(super) fn climb(&self, identity: &Identity) -> Option<&Climb> {
        self.climbs.get(identity)
    }

    /// From now on it is this.
    pub(super) fn set_climb(&mut self, identity: &Identity, climb: Climb) {
        self.climbs.insert(identity.clone(), climb);
    }

    /// All workers were released.
    pub(super) fn released(&mut self, now: UnixNanos) {
        for backoff in self.backoffs.values_mut() {
            backoff.released(now);
        }
    }

    /// Whether this worker is being restarted alone.
    pub(super) fn contains(&self, identity: &Identity) -> bool {
        self.under_way.contains_key(identity) || self.postponed.contains_key(identity)
    }

    /// Whether what becomes of this worker is covered by a restart that has not released it yet.
    pub(super) fn covers(&self, identity: &Identity) -> bool {
        let restart = self.under_way.get(identity);
        restart.is_some_and(|restart| !restart.released) || self.postponed.contains_key(identity)
    }

    /// What should be durable of it.
    pub(super) fn entries(&self) -> BTreeMap<Identity, Generation> {
        self.under_way
            .iter()
            .map(|(identity, restart)| (identity.clone(), restart.generation))
            .collect()
    }

    /// Whether any worker was restarted alone since the last restart of all, or is being.
    pub(super) fn is_empty(&self) -> bool {
        self.assigned.is_empty() && self.under_way.is_empty()
    }

    /// Whether this worker is being restarted alone at a number that the other does not know.
    pub(super) fn has_begun(&self, identity: &Identity, other: &Self) -> bool {
        let of = |worker_restarts: &Self| {
            worker_restarts
                .under_way
                .get(identity)
                .map(|restart| restart.generation)
        };
        of(self).is_some() && of(self) != of(other)
    }

    /// When to look again.
    pub(super) fn wake_at(&self) -> impl Iterator<Item = UnixNanos> + '_ {
        let deadlines = self.under_way.values().filter_map(|restart| restart.deadline);
        let held = self.under_way.iter().filter(|(_, restart)| !restart.released);
        let over = held.filter_map(|(identity, _)| self.backoffs.get(identity)?.over_at());
        deadlines.chain(over)
    }

    /// Those that count and are not durable yet.
    fn not_durable(&self, durable: &Durable) -> usize {
        let later = |restart: &&UnderWay| restart.generation > durable.latest && restart.counted;
        self.under_way.values().filter(later).count()
    }
}

impl Coordinator {
    /// The generation that this worker should have.
    pub(super) fn wanted(&self, identity: &Identity) -> Generation {
        self.worker_restarts
            .assigned
            .get(identity)
            .copied()
            .unwrap_or(self.generation)
    }

    /// The next generation is one of the whole group.
    pub(super) fn raise(&mut self) {
        let generation = self.worker_restarts.latest.max(self.generation).next();
        self.adopt_generation(generation);
    }

    /// The group has this generation, and every worker with it.
    pub(super) fn adopt_generation(&mut self, generation: Generation) {
        // What could not be written could never be released.
        let generation = generation.min(Generation::LAST);
        self.generation = generation;
        self.worker_restarts.absorb(generation);
    }

    /// A former leader may have written with its last breath, at the generation that this one knows. What it made durable is followed. What this one
    /// has decided at the same numbers was never told to anybody, and is decided anew.
    pub(super) fn follow_worker_restarts(&mut self, durable: &Durable) {
        let epoch = self.epoch;
        // What was asked for is done once: that it is must be known before anybody is told.
        let is_heard = durable.handled_worker_restart == self.handled_worker_restart;
        // A CRD of before has no room for it: then nobody is told, the request counts as handled here, and its workers are looked after as ever.
        let is_lost = !is_heard && durable.handled_worker_restart.is_none() && durable.epoch == epoch;
        let mut lost = false;
        self.worker_restarts.under_way.retain(|identity, restart| {
            let is_written = durable.worker_restarts.get(identity) == Some(&restart.generation);
            let never_told = restart.asked && !restart.durable && is_written && is_lost;
            lost |= never_told;
            !never_told
        });
        self.handled_is_lost |= lost;
        let before = self.worker_restarts.under_way.len();
        self.worker_restarts.under_way.retain(|identity, restart| {
            let is_written = durable.worker_restarts.get(identity) == Some(&restart.generation);
            restart.durable |= is_written && durable.epoch == epoch && (is_heard || !restart.asked);
            restart.durable || is_written || restart.generation > durable.latest
        });
        let mut foreign =
            self.worker_restarts.under_way.len() != before || durable.latest > self.worker_restarts.latest;
        for (identity, generation) in &durable.worker_restarts {
            let known = self.worker_restarts.under_way.get(identity);
            let is_news = *generation > self.wanted(identity)
                && known.is_none_or(|known| !known.durable && known.generation != *generation)
                && durable.epoch < epoch
                && !mutants::is(Mutant::ForgetWorkerRestarts);
            if is_news {
                let restart = UnderWay::new(*generation);
                self.worker_restarts.under_way.insert(identity.clone(), restart);
                foreign = true;
            }
        }
        self.worker_restarts.latest = self.worker_restarts.latest.max(durable.latest);
        if foreign {
            let more = u32::try_from(self.worker_restarts.not_durable(durable)).unwrap_or(u32::MAX);
            self.counter = durable.counter.saturating_add(more);
            // What this one has taken up of a request may be among what is decided anew.
            self.handled_worker_restart
                .clone_from(&durable.handled_worker_restart);
        }
    }

    /// Whether a worker reports a generation that this leader has never heard of, in a status that may have been overtaken: that of a worker that
    /// was restarted alone is in the newest one. It is read, and closed to former leaders, by writing to it.
    pub(super) fn may_be_behind(&self, observed: &Observed) -> bool {
        let known = self.generation.max(self.worker_restarts.latest);
        let any_has_scope = |scope| observed.workers.values().any(|worker| worker.scope == scope);
        observed.durable.epoch < self.epoch
            && any_has_scope(Scope::Worker)
            && observed.reports.values().any(|report| report.generation > known)
    }

    /// Workers know best what they were restarted at, as long as no more than that was given.
    pub(super) fn learn_worker_restarts(&mut self, observed: &Observed) {
        for report in observed.reports.values() {
            if report.generation > self.generation
                && report.generation <= self.worker_restarts.latest
                && report.generation > self.wanted(&report.identity)
            {
                self.worker_restarts
                    .assigned
                    .insert(report.identity.clone(), report.generation);
            }
        }
    }

    /// What became of the restarts that are under way, before anything is judged.
    pub(super) fn review_worker_restarts(&mut self, step: &mut Step<'_>) {
        let Step {
            observed, view, now, ..
        } = *step;
        let mut under_way = std::mem::take(&mut self.worker_restarts.under_way);
        under_way.retain(|identity, restart| {
            let Some(slot) = view.slots.get(identity) else {
                // Its Job is away; or the worker is, for good.
                return now < *restart.deadline.get_or_insert(step.deadline());
            };
            let lost_scope = restart.asked && !restart.durable && slot.worker.scope == Scope::Group;
            if !slot.counts() || lost_scope {
                return false;
            }
            if let Some((incarnation, report)) = slot.current.filter(|(_, report)| restart.is_reached(report))
            {
                match report.phase {
                    // Its pod goes all the same, and that belongs to this restart.
                    _ if self.escalation.condemns(slot) => {}
                    Phase::Running => {
                        step.out
                            .announcements
                            .extend(restart.restarted(incarnation, report));
                        return false;
                    }
                    // Whoever led before has released it.
                    Phase::Starting | Phase::Exited(_) if !restart.released => {
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
            if restart.released && !is_released && !has_ended {
                // Lost before it got so far: that is covered.
                restart.wait_for_next_incarnation();
            }
            true
        });
        self.worker_restarts.under_way = under_way;
        self.worker_restarts
            .climbs
            .retain(|identity, _| view.slots.contains_key(identity));
        self.worker_restarts.make_room(view);
    }

    /// Begins the restart of this worker alone that answers its failure.
    pub(super) fn restart_worker(&mut self, cause: Cause, answer: Answer, step: &mut Step<'_>) {
        let Some(identity) = cause.identity.clone() else {
            return;
        };
        self.count(answer);
        let of_group = &self.backoff;
        let backoffs = self.worker_restarts.backoffs.entry(identity.clone());
        let backoff = backoffs.or_insert_with(|| of_group.of_one());
        backoff.failed(&cause, step.observed.policy.max_backoff_ms, step.now);
        let failed = cause.clone();
        let (recreated, cause) = if answer == Answer::Pod {
            self.recreate_pod(&cause, step);
            let reason = Reason::FailedAgain;
            (Recreated::Pod, Cause { reason, ..cause })
        } else {
            (self.escalate(&cause, step), cause)
        };
        self.begin_worker_restart(identity.clone(), cause, step);
        self.note_worker_restart_begun(&identity, &failed, recreated);
        if let Some(restart) = self.worker_restarts.under_way.get_mut(&identity) {
            restart.counted = answer == Answer::Counted;
        }
    }

    /// Begins a restart of this worker alone, with the next number. It is not counted.
    pub(super) fn begin_worker_restart(&mut self, identity: Identity, cause: Cause, step: &mut Step<'_>) {
        let generation = self.worker_restarts.latest.max(self.generation).next();
        self.worker_restarts.latest = generation;
        if self.timeline.is_none() {
            let anew = matches!(cause.reason, Reason::PodLost | Reason::FailedAgain);
            self.level = Some(if anew {
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
        };
        let restart = UnderWay {
            asked: begun.cause.reason == Reason::ManualRequest,
            begun: Some(begun),
            ..UnderWay::new(generation)
        };
        self.worker_restarts.set_climb(&identity, Climb::in_place());
        self.worker_restarts.under_way.insert(identity, restart);
    }

    /// Tells and releases the workers whose restart is durable, and has the pods deleted in which they do not come up.
    pub(super) fn drive_worker_restarts(&mut self, step: &mut Step<'_>) {
        let Step {
            observed, view, now, ..
        } = *step;
        if !self.may_release(observed) {
            return;
        }
        let mut under_way = std::mem::take(&mut self.worker_restarts.under_way);
        let mut is_stuck = false;
        for (identity, restart) in &mut under_way {
            if !restart.durable && !mutants::is(Mutant::SkipWriteAhead) {
                continue;
            }
            self.worker_restarts
                .assigned
                .insert(identity.clone(), restart.generation);
            restart.written(now);
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
            } else if !restart.released {
                let backoff = self.worker_restarts.backoffs.entry(identity.clone()).or_default();
                if backoff.is_over(now) {
                    backoff.released(now);
                    restart.release(now);
                    let climb = self.worker_restarts.climbs.entry(identity.clone());
                    climb.or_insert_with(Climb::in_place).runs(now);
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
            // It can neither go on where it is nor be moved: its Job would fail for its pod.
            self.recreate(Self::cause_of(Reason::TimedOut), step);
        }
    }

    /// A restart that is under way of a worker whose scope is not its own any more, since a node daemon does not know of such scopes.
    pub(super) fn needs_group_restart(&self, view: &View<'_>) -> Option<Cause> {
        self.worker_restarts
            .under_way
            .iter()
            .find_map(|(identity, restart)| {
                let slot = view.slots.get(identity)?;
                let begun = restart.begun.as_ref();
                (slot.worker.scope == Scope::Group).then(|| {
                    begun.map_or_else(
                        || Cause {
                            identity: Some(identity.clone()),
                            ..Self::cause_of(Reason::ContainerLost)
                        },
                        |begun| begun.cause.clone(),
                    )
                })
            })
    }

    /// What incarnations are told whose worker was restarted alone.
    pub(super) fn desired_worker_restarts(&self, view: &View<'_>) -> BTreeMap<Incarnation, WorkerRestart> {
        let assigned = self.worker_restarts.assigned.iter();
        assigned
            .filter_map(|(identity, generation)| {
                let slot = view.slots.get(identity)?;
                // What has ended is told as well: its node may have started the next one without an agent, and stops that then.
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
