//! What counts as a failure: evidence about an incarnation that is released at the current
//! generation.
//!
//! A worker also fails if its heartbeat stops (`lockstep.dev/heartbeat-timeout`), or its first one
//! is late (`lockstep.dev/ready-timeout`). The agents judge that: they see the worker, so a delayed
//! report cannot mislead them. `inplace-timeout` bounds the wait for a worker that was not started.

use lockstep_mutants::mutant;

use super::super::view::Slot;
use super::super::{
    Cause, Exit, Generation, Heartbeat, Identity, Observed, Phase, Reason, Report, RestartLevel, Scope,
    TerminalAction, UnixNanos,
};
use super::Coordinator;
use super::step::Step;

/// How far the Job controller's clock may be behind this one, milliseconds.
pub(super) const CLOCKS_APART_MS: u64 = 2_000;
/// How soon a Job that ends its pods reports it, milliseconds.
const JOB_REPORTS_WITHIN_MS: u64 = 30_000;
/// How long to wait for a Job past its deadline to report failure, milliseconds. After that this
/// clock is taken to be wrong.
const JOB_IS_OVERDUE_MS: u64 = 60_000;
/// How long to wait for a Job with a deadline that this clock has not reached, milliseconds: the
/// clock may be wrong.
const JOB_MAY_REPORT_WITHIN_MS: u64 = 2_000;

impl Coordinator {
    /// The failures of released incarnations, the earliest first.
    pub(super) fn evidence(&mut self, step: &Step<'_>) -> Vec<Cause> {
        let Step {
            observed, view, now, ..
        } = *step;
        let mut causes: Vec<(Identity, Cause)> = Vec::new();
        let judged = |identity: &Identity, slot: &Slot<'_>| {
            slot.takes_part() && !self.worker_restarts.covers(identity)
        };
        for (identity, slot) in view
            .slots
            .iter()
            .filter(|(identity, slot)| judged(identity, slot))
        {
            let cause = self.evidence_of(identity, slot, observed);
            if let Some(cause) = cause.or_else(|| self.not_alive(identity, slot)) {
                causes.push(((*identity).clone(), cause));
            }
        }
        self.held
            .retain(|identity, _| view.slots.get(identity).is_some_and(Slot::takes_part));
        let deadline = step.deadline();
        let mut found: Vec<Cause> = Vec::new();
        for (identity, cause) in causes {
            let action = cause
                .exit
                .and_then(|exit| observed.policy.terminal_action(&identity, exit.code));
            match action {
                Some(TerminalAction::FailIndex) => {
                    let pod = self
                        .released_in
                        .get(&identity)
                        .map(|released| released.pod_uid.clone());
                    self.done.insert(identity, pod.unwrap_or_default());
                    continue;
                }
                Some(TerminalAction::FailJob) => {
                    self.held.entry(identity).or_insert(deadline);
                }
                Some(TerminalAction::Replace) | None => {
                    if let Some(within_ms) = Self::may_be_ended(&cause, step) {
                        let soon = now.plus_millis(observed.policy.timeout_ms.min(within_ms));
                        self.held.entry(identity).or_insert(soon);
                    }
                }
            }
            found.push(cause);
        }
        found.sort_by_key(|cause| cause.at.unwrap_or(UnixNanos(i64::MAX)));
        // A Job is being failed: its controller ends the other pods too, and the JobSet's failure
        // policy decides. If the Job does not report it, this wait ends.
        if view.is_failing() || self.held.values().any(|until| now < *until) {
            return Vec::new();
        }
        found
    }

    /// The failure of a worker that runs at the current generation and is not alive.
    pub(super) fn not_alive(&self, identity: &Identity, slot: &Slot<'_>) -> Option<Cause> {
        let (incarnation, report) = slot
            .current
            .filter(|(_, report)| report.phase == Phase::Running)?;
        let reason = match report.heartbeat {
            Heartbeat::Missed => Reason::HeartbeatMissed,
            Heartbeat::Overdue if !mutant!(NeverLate) => Reason::ReadyTimeout,
            _ => return None,
        };
        let is_released =
            report.generation == self.wanted(identity) && self.released_in.get(identity) == Some(incarnation);
        is_released.then(|| Cause::reported(reason, identity, report, None))
    }

    /// How many milliseconds to wait if the Job controller may be ending the pods of this worker's
    /// Job, which it does before the Job reports it. The clocks may differ by any amount, so this
    /// clock decides only how long to wait.
    fn may_be_ended(cause: &Cause, step: &Step<'_>) -> Option<u64> {
        mutant!(CountEndedPods => None);
        let Step { view, now, .. } = *step;
        let (identity, slot) = cause.identity.as_ref().zip(step.slot_of(cause))?;
        // If the agent reports the failure, the worker has failed by itself.
        let from_outside = match cause.reason {
            Reason::ContainerLost | Reason::PodLost => true,
            Reason::WorkerExited => slot.worker.level == RestartLevel::Container,
            _ => false,
        };
        if !from_outside {
            return None;
        }
        let mut slots = view.slots.iter();
        // A Job with a failed index cannot succeed.
        let early =
            |(of, slot): (&Identity, &Slot<'_>)| of.job == identity.job && slot.done && !slot.worker.failed;
        if slot.worker.ends_early && slots.any(early) {
            return Some(JOB_REPORTS_WITHIN_MS);
        }
        slot.worker.ends_at.map(|at| {
            let is_over = now.plus_millis(CLOCKS_APART_MS) >= at && now < at.plus_millis(JOB_IS_OVERDUE_MS);
            if is_over {
                JOB_REPORTS_WITHIN_MS
            } else {
                JOB_MAY_REPORT_WITHIN_MS
            }
        })
    }

    fn evidence_of(&self, identity: &Identity, slot: &Slot<'_>, observed: &Observed) -> Option<Cause> {
        if slot.worker.level == RestartLevel::Container {
            return self.evidence_of_container(identity, slot, observed);
        }
        if let Some((report, exit)) = self.failed_without_agent(identity, slot) {
            return Some(Cause::reported(
                Reason::ContainerLost,
                identity,
                report,
                Some(exit),
            ));
        }
        let Some(released) = self.released_in.get(identity) else {
            return self.evidence_after_takeover(identity, slot);
        };
        let current = slot.current.filter(|(incarnation, _)| *incarnation == released);
        if let Some(report) =
            current.map_or_else(|| observed.reports.get(released), |(_, report)| Some(report))
        {
            match report.phase {
                Phase::Unlinked if mutant!(UnlinkedIsLost) => {
                    return Some(Cause {
                        at: None,
                        ..Cause::reported(Reason::ContainerLost, identity, report, None)
                    });
                }
                Phase::Exited(exit)
                    if report.generation == self.wanted(identity) || mutant!(CountStaleFailures) =>
                {
                    return Some(Cause::reported(
                        Reason::WorkerExited,
                        identity,
                        report,
                        Some(exit),
                    ));
                }
                Phase::Lost(exit) => {
                    return Some(Cause::reported(
                        Reason::ContainerLost,
                        identity,
                        report,
                        Some(exit),
                    ));
                }
                _ => {}
            }
        }
        if !slot.worker.pods.iter().any(|pod| pod.uid == released.pod_uid) {
            return Some(Cause::unreported(Reason::PodLost, identity));
        }
        let (current, report) = slot.current?;
        (current != released && report.phase != Phase::Unlinked)
            .then(|| Cause::reported(Reason::ContainerLost, identity, report, None))
    }

    /// How this worker failed in a container that was made without its agent, while its group ran
    /// at the current generation. Whatever followed that container, its peers did not learn of the
    /// failure. A worker that restarts by itself has no waiting peers, and the kubelet has started
    /// it again. An optional worker may have failed before it joined.
    fn failed_without_agent<'a>(&self, identity: &Identity, slot: &Slot<'a>) -> Option<(&'a Report, Exit)> {
        mutant!(IgnoreUnsupervisedFailure => None);
        if slot.worker.scope == Scope::Worker || slot.worker.optional {
            return None;
        }
        let wanted = Some(self.wanted(identity));
        slot.failed_without_agent
            .filter(|(report, _)| report.released_generation == wanted)
    }

    /// A new leader does not know which workers were released. If a worker of a started stage has
    /// not started or is gone, it was.
    fn evidence_after_takeover(&self, identity: &Identity, slot: &Slot<'_>) -> Option<Cause> {
        let wanted = self.wanted(identity);
        let started = self.started.contains(&slot.worker.stage);
        let Some((_, report)) = slot.current else {
            if !started {
                return None;
            }
            if slot.worker.pods.is_empty() {
                return Some(Cause::unreported(Reason::PodLost, identity));
            }
            let (_, ended) = slot.ended.filter(|(_, ended)| ended.generation == wanted)?;
            let is_heard_of = ended.generation > Generation::default();
            if slot.worker.scope == Scope::Worker && self.worker_restarts.latest > wanted && !is_heard_of {
                // Daemons also report 0 for containers whose agents never registered. The worker
                // may have restarted since, in a container whose agent has not come back to its
                // daemon yet. The current container decides: it is fresh if the worker has not
                // restarted.
                return None;
            }
            let Phase::Lost(exit) = ended.phase else {
                return None;
            };
            return Some(Cause::reported(
                Reason::ContainerLost,
                identity,
                ended,
                Some(exit),
            ));
        };
        match report.phase {
            Phase::Parked if report.generation == wanted && self.stage_has_run(slot) => {
                Some(Cause::reported(Reason::ContainerLost, identity, report, None))
            }
            Phase::Fresh if started => Some(Cause::reported(Reason::ContainerLost, identity, report, None)),
            Phase::Exited(exit) if report.generation == wanted => Some(Cause::reported(
                Reason::WorkerExited,
                identity,
                report,
                Some(exit),
            )),
            _ => None,
        }
    }
}
