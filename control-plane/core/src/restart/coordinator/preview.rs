//! The effect that a request for a restart would have now, tried on a copy.
//!
//! Promises: it changes nothing and decides nothing. One copy of the coordinator takes a step with
//! the request, and one without it. The difference is the effect of the request.

use std::collections::BTreeMap;

use super::super::view::{Slot, View};
use super::super::{Generation, Identity, Observed, Phase, Reason, RestartLevel, UnixNanos};
use super::{Coordinator, State};

/// The effect of a request for a restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// The effect on the group.
    pub effect: Effect,
    /// The effect on each worker; empty if nothing would be done.
    pub workers: BTreeMap<Identity, Fate>,
}

/// The effect on the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    Nothing(Unmoved),
    /// A restart in place.
    InPlace {
        /// The restart attempt that it would lead to.
        generation: Generation,
        /// The level that it would begin with.
        level: RestartLevel,
    },
    /// The Jobs would be recreated.
    Recreate {
        /// The restart attempt that it would lead to.
        generation: Generation,
        /// Why it would not restart in place.
        reason: Reason,
    },
}

/// Why nothing would be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmoved {
    /// This request was handled before.
    Handled,
    /// A new leader decides nothing yet.
    Recovering,
    /// The workers restart anyway, or the Jobs are being recreated.
    UnderWay,
    /// No worker runs yet.
    NoneRuns,
    /// The JobSet is suspended.
    Suspended,
    /// maxRestarts is used up.
    Failed,
    /// Too many worker restarts are under way: the request waits for its turn.
    NoRoom,
}

/// The effect on a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It would stop and start again.
    Stopped,
    /// Not touched: it is done.
    Done,
    /// Not touched: its replicatedJob has finished.
    Finished,
    /// Not touched: it has not started, so there is nothing to stop.
    NotStarted,
    /// Not touched: the request does not name it.
    NotNamed,
    /// Not touched by this request: it is restarting anyway.
    UnderWay,
}

impl Coordinator {
    /// The effect of the request `token` if it came now.
    #[must_use]
    pub fn preview(&self, observed: &Observed, token: &str, now: UnixNanos) -> Preview {
        let nothing = |why| Preview {
            effect: Effect::Nothing(why),
            workers: BTreeMap::new(),
        };
        if self.handled_request.as_deref() == Some(token) {
            return nothing(Unmoved::Handled);
        }
        let mut without = self.clone();
        without.step(observed, now);
        let mut with = self.clone();
        let asked = Observed {
            manual_request: Some(token.to_owned()),
            ..observed.clone()
        };
        with.step(&asked, now);
        if with.generation == without.generation {
            let handled = with.handled_request.as_deref() == Some(token);
            return nothing(match without.state {
                State::Failed => Unmoved::Failed,
                State::Suspended => Unmoved::Suspended,
                State::Recovering { .. } => Unmoved::Recovering,
                _ if !handled => Unmoved::Recovering,
                State::InSync => Unmoved::NoneRuns,
                State::Stopping { .. }
                | State::Parked { .. }
                | State::Releasing { .. }
                | State::Recreating => Unmoved::UnderWay,
            });
        }
        let generation = with.generation;
        let view = View::new(observed, &self.done, |identity| self.has_joined(identity));
        let recreates = with.state == State::Recreating;
        let effect = if recreates {
            let reason = with.cause.as_ref().map_or(Reason::WorkDone, |cause| cause.reason);
            Effect::Recreate { generation, reason }
        } else {
            Effect::InPlace {
                generation,
                level: with.level.unwrap_or_default(),
            }
        };
        let fate = |slot: &Slot<'_>| {
            if recreates {
                recreated(slot)
            } else {
                in_place(slot)
            }
        };
        let workers = view.slots.iter();
        Preview {
            effect,
            workers: workers
                .map(|(identity, slot)| ((*identity).clone(), fate(slot)))
                .collect(),
        }
    }
}

pub(super) fn in_place(slot: &Slot<'_>) -> Fate {
    if slot.done {
        Fate::Done
    } else if slot.finished {
        Fate::Finished
    } else if has_started(slot) {
        Fate::Stopped
    } else {
        Fate::NotStarted
    }
}

/// If Jobs are recreated, workers that are done run again.
fn recreated(slot: &Slot<'_>) -> Fate {
    if slot.done || !slot.worker.pods.is_empty() {
        Fate::Stopped
    } else {
        Fate::NotStarted
    }
}

/// True if a worker has started. One without an agent runs from the beginning, and an unreported
/// one may run.
fn has_started(slot: &Slot<'_>) -> bool {
    match slot.current {
        Some((_, report)) => report.phase != Phase::Fresh || slot.worker.level != RestartLevel::Process,
        None => slot.ended.is_some() || slot.worker.pods.iter().any(|pod| pod.running),
    }
}
