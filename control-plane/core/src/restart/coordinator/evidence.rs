//! What counts as a failure: evidence about an incarnation that is released at the current generation.

use lockstep_mutants::{self as mutants, Mutant};

use super::super::view::{Slot, View};
use super::super::{Cause, Exit, Identity, Observed, Phase, Reason, Rung, TerminalAction, UnixNanos};
use super::Coordinator;

pub(super) type MakeCause<'a> = dyn Fn(Reason, &str, &str, Option<Exit>, Option<UnixNanos>) -> Cause + 'a;

impl Coordinator {
    /// The earliest failure of an incarnation that is released now.
    pub(super) fn evidence(&mut self, observed: &Observed, view: &View<'_>, now: UnixNanos) -> Option<Cause> {
        let mut causes: Vec<(Identity, Cause)> = Vec::new();
        for (identity, slot) in view.slots.iter().filter(|(_, slot)| slot.counts()) {
            let cause = self.evidence_of(identity, slot, observed);
            if let Some(cause) = cause.or_else(|| self.not_alive(identity, slot, now)) {
                causes.push(((*identity).clone(), cause));
            }
        }
        let deadline = now.plus_millis(observed.policy.timeout_ms);
        let mut found: Option<&Cause> = None;
        for (identity, cause) in &causes {
            let action = cause
                .exit
                .and_then(|exit| observed.policy.terminal_action(identity, exit.code));
            match action {
                Some(TerminalAction::FailIndex) => {
                    let pod = self.seats.get(identity).map(|seat| seat.pod_uid.clone());
                    self.done.insert(identity.clone(), pod.unwrap_or_default());
                    continue;
                }
                Some(TerminalAction::FailJob) => {
                    self.held.entry(identity.clone()).or_insert(deadline);
                }
                Some(TerminalAction::Replace) | None => {}
            }
            let at = |cause: &Cause| cause.at.unwrap_or(UnixNanos(i64::MAX));
            if found.is_none_or(|earliest| at(cause) < at(earliest)) {
                found = Some(cause);
            }
        }
        // A Job is being failed: its controller ends the other pods too, and the JobSet's failure policy decides. Where the Job does not say so
        // itself that is not believed for ever.
        if view.is_failing() || self.held.values().any(|until| now < *until) {
            return None;
        }
        found.cloned()
    }

    fn evidence_of(&self, identity: &Identity, slot: &Slot<'_>, observed: &Observed) -> Option<Cause> {
        let cause = |reason, pod: &str, node: &str, exit: Option<Exit>, at: Option<UnixNanos>| Cause {
            reason,
            identity: Some(identity.clone()),
            pod: pod.to_owned(),
            node: node.to_owned(),
            exit,
            at,
        };
        if slot.worker.rung == Rung::Container {
            return self.evidence_of_container(identity, slot, observed, &cause);
        }
        let Some(seat) = self.seats.get(identity) else {
            return self.evidence_without_seat(slot, &cause);
        };
        if let Some(report) = observed.reports.get(seat) {
            match report.phase {
                Phase::Unlinked if mutants::is(Mutant::UnlinkedIsLost) => {
                    return Some(cause(
                        Reason::ContainerLost,
                        &report.pod_name,
                        &report.node,
                        None,
                        None,
                    ));
                }
                Phase::Exited(exit)
                    if report.generation == self.generation || mutants::is(Mutant::CountStaleFailures) =>
                {
                    let at = Some(report.since);
                    return Some(cause(
                        Reason::WorkerExited,
                        &report.pod_name,
                        &report.node,
                        Some(exit),
                        at,
                    ));
                }
                Phase::Lost(exit) => {
                    let at = Some(report.since);
                    return Some(cause(
                        Reason::ContainerLost,
                        &report.pod_name,
                        &report.node,
                        Some(exit),
                        at,
                    ));
                }
                _ => {}
            }
        }
        if !slot.worker.pods.iter().any(|pod| pod.uid == seat.pod_uid) {
            return Some(cause(Reason::PodLost, "", "", None, None));
        }
        let (current, report) = slot.current?;
        (current != seat && report.phase != Phase::Unlinked).then(|| {
            cause(
                Reason::ContainerLost,
                &report.pod_name,
                &report.node,
                None,
                Some(report.since),
            )
        })
    }

    /// A new leader does not remember whom it released: a worker of a fully started stage that is unstarted or gone was.
    fn evidence_without_seat(&self, slot: &Slot<'_>, cause: &MakeCause<'_>) -> Option<Cause> {
        let started = self.started.contains(&slot.worker.stage);
        let Some((_, report)) = slot.current else {
            if !started {
                return None;
            }
            if slot.worker.pods.is_empty() {
                return Some(cause(Reason::PodLost, "", "", None, None));
            }
            let (_, ended) = slot
                .ended
                .filter(|(_, ended)| ended.generation == self.generation)?;
            let Phase::Lost(exit) = ended.phase else {
                return None;
            };
            let at = Some(ended.since);
            return Some(cause(
                Reason::ContainerLost,
                &ended.pod_name,
                &ended.node,
                Some(exit),
                at,
            ));
        };
        let at = Some(report.since);
        match report.phase {
            Phase::Fresh if started => Some(cause(
                Reason::ContainerLost,
                &report.pod_name,
                &report.node,
                None,
                at,
            )),
            Phase::Exited(exit) if report.generation == self.generation => Some(cause(
                Reason::WorkerExited,
                &report.pod_name,
                &report.node,
                Some(exit),
                at,
            )),
            _ => None,
        }
    }
}
