//! Requests to restart some workers (`lockstep.dev/restart-workers`).
//!
//! Promises: exactly those named workers restart that run and have their own restart scope; a
//! request is handled once, and that is durable before any worker gets its order. A restart of the
//! group fulfils the request.

use std::collections::BTreeMap;

use lockstep_api::WorkerRestartRequest;
use lockstep_mutants::mutant;

use super::super::view::{Slot, View};
use super::super::{Cause, Identity, Observed, Reason, RestartLevel, Scope, UnixNanos};
use super::preview::{Effect, Fate, Preview, Unmoved, in_place};
use super::step::Step;
use super::worker_restarts::WORKER_RESTARTS_AT_ONCE;
use super::{Coordinator, State};

impl Coordinator {
    /// Acts on a request to restart some workers, once.
    pub(super) fn handle_worker_restart_request(&mut self, step: &mut Step<'_>) {
        let Some(request) = &step.observed.worker_restart_request else {
            return;
        };
        let token = request.to_string();
        if self.handled_worker_restart.as_ref() == Some(&token)
            || matches!(self.state, State::Failed | State::Recovering { .. })
        {
            return;
        }
        if matches!(self.state, State::InSync | State::Releasing { .. }) {
            let stopped: Vec<(Identity, Cause)> = step
                .view
                .slots
                .iter()
                .filter(|(identity, slot)| self.is_asked(request, identity, slot))
                .map(|(identity, slot)| ((*identity).clone(), requested(identity, slot)))
                .collect();
            let fit = stopped.len() <= self.worker_restarts.room();
            if !fit && stopped.len() <= WORKER_RESTARTS_AT_ONCE {
                // All of them fit, but not yet.
                return;
            }
            for (identity, cause) in stopped.into_iter().filter(|_| fit) {
                self.begin_worker_restart(identity, cause, step);
            }
        }
        self.handled_worker_restart = Some(token);
    }

    /// True if the request restarts this worker now.
    fn is_asked(&self, request: &WorkerRestartRequest, identity: &Identity, slot: &Slot<'_>) -> bool {
        (names(request, identity, slot) || mutant!(WidenRequest))
            && slot.worker.scope == Scope::Worker
            && slot.takes_part()
            && !slot.worker.ending
            && !self.worker_restarts.contains(identity)
            && slot.running_at(self.wanted(identity))
    }

    /// The effect of this request to restart some workers if it came now.
    #[must_use]
    pub fn preview_worker_restarts(
        &self,
        observed: &Observed,
        request: &WorkerRestartRequest,
        now: UnixNanos,
    ) -> Preview {
        let nothing = |why| Preview {
            effect: Effect::Nothing(why),
            workers: BTreeMap::new(),
        };
        let token = request.to_string();
        if self.handled_worker_restart.as_ref() == Some(&token) {
            return nothing(Unmoved::Handled);
        }
        let mut without = self.clone();
        without.step(observed, now);
        let mut with = self.clone();
        let asked = Observed {
            worker_restart_request: Some(request.clone()),
            ..observed.clone()
        };
        with.step(&asked, now);
        let view = View::new(observed, &self.done, |identity| self.has_joined(identity));
        let stopped =
            |identity: &Identity| with.worker_restarts.has_begun(identity, &without.worker_restarts);
        let concerned = |identity: &Identity| without.worker_restarts.contains(identity);
        let named = || {
            let slots = view.slots.iter();
            slots.filter(|(identity, slot)| names(request, identity, slot))
        };
        if !named().any(|(identity, _)| stopped(identity)) {
            let slots = view.slots.iter();
            let asked = slots.filter(|(identity, slot)| without.is_asked(request, identity, slot));
            let fits = asked.count() <= without.worker_restarts.room();
            return nothing(match with.state {
                State::Failed => Unmoved::Failed,
                State::Suspended => Unmoved::Suspended,
                State::Recovering { .. } => Unmoved::Recovering,
                State::InSync | State::Releasing { .. } if !fits => Unmoved::NoRoom,
                State::InSync if !named().any(|(identity, _)| concerned(identity)) => Unmoved::NoneRuns,
                _ => Unmoved::UnderWay,
            });
        }
        let fate = |identity: &Identity, slot: &Slot<'_>| match in_place(slot) {
            _ if stopped(identity) => Fate::Stopped,
            _ if !names(request, identity, slot) => Fate::NotNamed,
            _ if concerned(identity) => Fate::UnderWay,
            Fate::Stopped => Fate::NotStarted,
            other => other,
        };
        let workers = view.slots.iter();
        Preview {
            effect: Effect::InPlace {
                generation: with.worker_restarts.latest,
                level: RestartLevel::Process,
            },
            workers: workers
                .map(|(identity, slot)| ((*identity).clone(), fate(identity, slot)))
                .collect(),
        }
    }
}

fn names(request: &WorkerRestartRequest, identity: &Identity, slot: &Slot<'_>) -> bool {
    let Identity {
        job,
        index,
        container,
    } = identity;
    request.target.takes(&slot.worker.stage, job, *index, container)
}

fn requested(identity: &Identity, slot: &Slot<'_>) -> Cause {
    let reason = Reason::ManualRequest;
    slot.current.map_or_else(
        || Cause::unreported(reason, identity),
        |(_, report)| Cause {
            at: None,
            ..Cause::reported(reason, identity, report, None)
        },
    )
}
