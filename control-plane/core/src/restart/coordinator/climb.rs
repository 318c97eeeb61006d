//! Workers that fail soon after a restart in place because something outlives it: kernel state that
//! belongs to the pod, such as a port in `TIME_WAIT`.
//!
//! ```text
//!              the same worker again, soon          again, soon          again
//!  in place ─────────────────────────────> its pod ─────────────> all Jobs ─────> in place, counted
//!  counted                                 recreated, not counted recreated, not counted
//! ```
//!
//! Promises: a worker climbs only if it fails by itself, within [`SOON_MS`] of the restart for its
//! own failure, or for the failure of another worker while it had ended by itself too; at most two
//! restarts between two counted ones are not counted; leftovers of a restart in place do not use up
//! `maxRestarts` before all Jobs were recreated once.
//!
//! Only the leader that has begun a restart knows its cause. The next leader counts failures as
//! usual. From the status it knows the level of the latest restart.

use std::collections::BTreeSet;

use super::super::view::View;
use super::super::{Cause, Durable, Exit, Generation, Identity, Phase, Reason, RestartLevel, UnixNanos};
use super::backoff::was_not_ended;

/// A failure within this time of the release counts as soon, milliseconds: the kernel keeps a port
/// in `TIME_WAIT` this long.
const SOON_MS: u64 = 60_000;

/// What a restart has recreated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Recreated {
    /// Only processes or containers.
    InPlace,
    /// The pod of the worker that has failed.
    Pod,
    /// All Jobs, as for workers that start for the first time.
    #[default]
    Jobs,
}

/// The latest restart, as far as the next failure depends on it.
#[derive(Debug, Clone, Default)]
pub(super) struct LatestRestart {
    recreated: Recreated,
    /// The worker whose failure it answers, if that worker may climb from there.
    worker: Option<Identity>,
    /// True if that worker had ended by itself, and not because a peer was killed.
    by_itself: bool,
    /// Other workers that had ended by themselves before all had stopped: perhaps for the same
    /// reason.
    others: BTreeSet<Identity>,
    /// Since when all workers run again; `None` until then.
    since: Option<UnixNanos>,
}

impl LatestRestart {
    /// Recovers what a new leader knows. It does not know when the latest restart ended, so
    /// failures within a minute count as soon.
    pub(super) fn recover(durable: &Durable, now: UnixNanos) -> Self {
        let recreated = match durable.level {
            Some(RestartLevel::Process | RestartLevel::Container) => Recreated::InPlace,
            Some(RestartLevel::Pod) => Recreated::Pod,
            Some(RestartLevel::Recreate) | None => Recreated::Jobs,
        };
        Self {
            recreated,
            since: Some(now),
            ..Self::default()
        }
    }

    /// A restart in place from which no worker climbs: its failure is unknown, or there was none.
    pub(super) fn in_place() -> Self {
        Self {
            recreated: Recreated::InPlace,
            ..Self::default()
        }
    }

    /// A restart for this failure. A deleted pod leaves nothing behind.
    pub(super) fn of_failure(cause: &Cause, recreated: Recreated) -> Self {
        let lost = cause.reason == Reason::PodLost;
        Self {
            recreated,
            worker: cause.identity.clone().filter(|_| !lost),
            by_itself: fails_by_itself(cause),
            ..Self::default()
        }
    }

    /// All affected workers run again, or were released.
    pub(super) fn note_running(&mut self, now: UnixNanos) {
        self.since = Some(now);
    }

    /// Not all affected workers run.
    pub(super) fn note_under_way(&mut self) {
        self.since = None;
    }

    /// True if the failure comes soon after the restart. A report may be late and the node's clock
    /// wrong, so the report counts for one more minute only.
    fn is_soon(&self, cause: &Cause, now: UnixNanos) -> bool {
        self.since.is_none_or(|since| {
            let soon = since.plus_millis(SOON_MS);
            let told_late = cause.at.is_some_and(|at| at <= soon);
            now <= soon || told_late && now <= soon.plus_millis(SOON_MS)
        })
    }

    fn is_of(&self, cause: &Cause) -> bool {
        self.worker.is_some() && self.worker == cause.identity
    }

    /// Notes workers that had ended by themselves at an earlier generation, while all stop because
    /// of one failure.
    pub(super) fn note_ended_too(&mut self, view: &View<'_>, generation: Generation) {
        if self.worker.is_none() || !self.by_itself {
            return;
        }
        for (identity, slot) in view.slots.iter() {
            let ended = slot.current.is_some_and(|(_, report)| {
                matches!(report.phase, Phase::Exited(exit) if ends_by_itself(exit))
                    && report.generation < generation
            });
            if ended && !self.others.contains(identity) {
                self.others.insert(identity.clone());
            }
        }
    }

    /// True if the worker of this failure may climb from the latest restart.
    fn concerns(&self, cause: &Cause) -> bool {
        let mut identity = cause.identity.iter();
        self.is_of(cause) || identity.any(|identity| self.others.contains(identity))
    }

    /// What the restart for this failure recreates, if its worker climbs.
    pub(super) fn recreates_next(&self, cause: &Cause, now: UnixNanos) -> Option<Recreated> {
        if !self.concerns(cause) || !fails_by_itself(cause) || !self.is_soon(cause, now) {
            return None;
        }
        match self.recreated {
            Recreated::InPlace => Some(Recreated::Pod),
            Recreated::Pod => Some(Recreated::Jobs),
            Recreated::Jobs => None,
        }
    }

    /// True if the failure comes soon after a restart that recreated less than `below`: leftovers
    /// may be its reason.
    pub(super) fn leftovers_may_cause(&self, below: Recreated, cause: &Cause, now: UnixNanos) -> bool {
        let hangs = matches!(cause.reason, Reason::HeartbeatMissed | Reason::ReadyTimeout);
        // The new pod of one worker removes no leftovers of another.
        let of_another = self.recreated == Recreated::Pod && self.worker.is_some() && !self.is_of(cause);
        let recreated = if of_another {
            Recreated::InPlace
        } else {
            self.recreated
        };
        recreated < below && (hangs || fails_by_itself(cause)) && self.is_soon(cause, now)
    }
}

/// True if a worker has ended by itself. That excludes a shell whose child was killed, and a
/// container whose end no daemon saw.
fn fails_by_itself(cause: &Cause) -> bool {
    cause.reason == Reason::WorkerExited && cause.exit.is_some_and(ends_by_itself)
}

fn ends_by_itself(exit: Exit) -> bool {
    const OF_KILLED: [i32; 2] = [128 + 9, 128 + 15];
    !OF_KILLED.contains(&exit.code) && was_not_ended(exit)
}
