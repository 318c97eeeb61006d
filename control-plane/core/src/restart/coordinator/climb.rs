//! Workers that fail soon after a restart in place, because of what outlives one: state of the kernel that goes with the pod, such as a port in `TIME_WAIT`.
//!
//! ```text
//!              the same worker again, soon          again, soon          again
//!  in place ─────────────────────────────> its pod ─────────────> all Jobs ─────> in place, counted
//!  counted                                 made anew, not counted  made anew, not counted
//! ```
//!
//! Promises: a worker climbs only where it fails by itself, within [`SOON_MS`] of the restart that was to answer its own failure, or that of another one which
//! had ended by itself, as it had too; between two counted restarts
//! no more than two are not counted; `maxRestarts` is not used up by what a restart in place leaves behind before all Jobs were made anew once.
//!
//! What the restart before was, and for whom, is known to the leader that has begun it. The next one takes failures for what they are otherwise: counted. From
//! the status it knows by which level the latest restart was done.

use std::collections::BTreeSet;

use super::super::view::View;
use super::super::{Cause, Durable, Exit, Generation, Identity, Phase, Reason, RestartLevel, UnixNanos};
use super::backoff::was_not_ended;

/// A failure within this time of the release comes soon, milliseconds: so long the kernel keeps a port in `TIME_WAIT`.
const SOON_MS: u64 = 60_000;

/// What a restart has recreated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Recreated {
    /// Nothing but processes or containers.
    InPlace,
    /// The pod of the worker that has failed.
    Pod,
    /// All Jobs. So it is with workers that start for the first time.
    #[default]
    Jobs,
}

/// The latest restart, as far as the next failure depends on it.
#[derive(Debug, Clone, Default)]
pub(super) struct Climb {
    recreated: Recreated,
    /// Whose failure it answers, where that worker may climb from there.
    worker: Option<Identity>,
    /// Whether that worker had ended by itself. Who ends because a peer was killed does not fail for the same.
    by_itself: bool,
    /// Who else had ended by itself before all had stopped: these may have failed for the same.
    others: BTreeSet<Identity>,
    /// Since when all run again; none: they do not yet.
    since: Option<UnixNanos>,
}

impl Climb {
    /// What a new leader knows. When the latest restart ended it does not know: the failures of a minute come soon.
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

    /// A restart in place has begun that nobody climbs from: it answers no failure, or one that is not known.
    pub(super) fn in_place() -> Self {
        Self {
            recreated: Recreated::InPlace,
            ..Self::default()
        }
    }

    /// One has begun for this failure. A pod that is gone leaves nothing behind.
    pub(super) fn begun(cause: &Cause, recreated: Recreated) -> Self {
        let lost = cause.reason == Reason::PodLost;
        Self {
            recreated,
            worker: cause.identity.clone().filter(|_| !lost),
            by_itself: fails_by_itself(cause),
            ..Self::default()
        }
    }

    /// All whom it concerns run again, or were released.
    pub(super) fn runs(&mut self, now: UnixNanos) {
        self.since = Some(now);
    }

    /// Those whom it concerns do not all run yet, or not any more.
    pub(super) fn is_under_way(&mut self) {
        self.since = None;
    }

    /// News of a failure may be late. The clock of its node may be wrong by anything, so it is believed for no more than a minute.
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

    /// While all stop for the failure of one: who had ended by itself at an earlier generation than this.
    pub(super) fn ended_too(&mut self, view: &View<'_>, generation: Generation) {
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

    /// Whether the worker of this failure may climb from the latest restart.
    fn concerns(&self, cause: &Cause) -> bool {
        let mut identity = cause.identity.iter();
        self.is_of(cause) || identity.any(|identity| self.others.contains(identity))
    }

    /// What is to be made anew for this failure, where its worker climbs.
    pub(super) fn next(&self, cause: &Cause, now: UnixNanos) -> Option<Recreated> {
        if !self.concerns(cause) || !fails_by_itself(cause) || !self.is_soon(cause, now) {
            return None;
        }
        match self.recreated {
            Recreated::InPlace => Some(Recreated::Pod),
            Recreated::Pod => Some(Recreated::Jobs),
            Recreated::Jobs => None,
        }
    }

    /// Whether less than that was made anew before this failure came, soon: then it may be due to what was not.
    pub(super) fn may_outlive(&self, below: Recreated, cause: &Cause, now: UnixNanos) -> bool {
        let hangs = matches!(cause.reason, Reason::HeartbeatMissed | Reason::ReadyTimeout);
        // That one worker's pod was made anew took nothing away from another.
        let of_another = self.recreated == Recreated::Pod && self.worker.is_some() && !self.is_of(cause);
        let recreated = if of_another {
            Recreated::InPlace
        } else {
            self.recreated
        };
        recreated < below && (hangs || fails_by_itself(cause)) && self.is_soon(cause, now)
    }
}

/// Whether a worker has ended by itself. A shell that says that its child was killed has not, nor a container whose end nobody saw.
fn fails_by_itself(cause: &Cause) -> bool {
    cause.reason == Reason::WorkerExited && cause.exit.is_some_and(ends_by_itself)
}

fn ends_by_itself(exit: Exit) -> bool {
    const OF_KILLED: [i32; 2] = [128 + 9, 128 + 15];
    !OF_KILLED.contains(&exit.code) && was_not_ended(exit)
}
