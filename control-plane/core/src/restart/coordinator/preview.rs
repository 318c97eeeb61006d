//! What a request for a restart would do now, tried on a copy.
//!
//! Promises: nothing is changed, and nothing is decided here: a copy of the coordinator takes one step with the request, and another one
//! without it. What differs is what the request does.

use std::collections::BTreeMap;

use super::super::view::{Slot, View};
use super::super::{Generation, Identity, Observed, Phase, Reason, RestartLevel, UnixNanos};
use super::{Coordinator, State};

/// What a request for a restart would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Preview {
    /// What would be done.
    pub effect: Effect,
    /// What would become of each worker; empty where nothing would be done.
    pub workers: BTreeMap<Identity, Fate>,
}

/// What would be done.
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
        /// Why it would not be in place.
        reason: Reason,
    },
}

/// Why nothing would be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmoved {
    /// This very request has been acted upon.
    Handled,
    /// A new leader decides nothing yet.
    Recovering,
    /// The workers are being restarted, or made anew, anyway.
    UnderWay,
    /// No worker runs yet.
    NoneRuns,
    /// The JobSet is suspended.
    Suspended,
    /// maxRestarts is used up.
    Failed,
    /// As many workers as may be are being restarted alone: it waits for its turn.
    NoRoom,
}

/// What would become of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fate {
    /// It would be stopped, and started again.
    Stopped,
    /// Left alone: it is done.
    Done,
    /// Left alone: its replicatedJob has finished.
    Finished,
    /// Left alone: it has not started, so there is nothing to stop.
    NotStarted,
    /// Left alone: the request does not name it.
    NotNamed,
    /// Left alone by this request: it is being restarted alone anyway.
    UnderWay,
}

impl Coordinator {
    /// What the request `token` would do if it came now.
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
            let heard = with.handled_request.as_deref() == Some(token);
            return nothing(match without.state {
                State::Failed => Unmoved::Failed,
                State::Suspended => Unmoved::Suspended,
                State::Recovering { .. } => Unmoved::Recovering,
                _ if !heard => Unmoved::Recovering,
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
        let fate = |slot: &Slot<'_>| if recreates { anew(slot) } else { in_place(slot) };
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

/// Where Jobs are made anew, what is done is run again.
fn anew(slot: &Slot<'_>) -> Fate {
    if slot.done || !slot.worker.pods.is_empty() {
        Fate::Stopped
    } else {
        Fate::NotStarted
    }
}

/// A worker without an agent runs from the beginning. Where nobody says anything it may run.
fn has_started(slot: &Slot<'_>) -> bool {
    match slot.current {
        Some((_, report)) => report.phase != Phase::Fresh || slot.worker.level != RestartLevel::Process,
        None => slot.ended.is_some() || slot.worker.pods.iter().any(|pod| pod.running),
    }
}
