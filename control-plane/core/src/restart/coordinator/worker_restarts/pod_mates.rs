//! The other workers of a pod that is deleted for the restart of one of them.

use super::super::super::view::View;
use super::super::super::{Cause, Condemned, Identity, Reason};
use super::super::Coordinator;
use super::super::consequence::Consequence;
use super::super::step::Step;
use super::under_way::UnderWay;

impl Coordinator {
    /// Restarts the other workers of a pod that is deleted for the restart of one. They have not
    /// failed, so this does not count. It counts if the first worker does not start in the next pod
    /// either, because it would never end otherwise.
    pub(in super::super) fn begin_with_pod_mates(&mut self, step: &mut Step<'_>) {
        if !self.may_release(step.observed) {
            return;
        }
        let of_one = |condemned: &&Condemned| self.worker_restarts.contains(&condemned.identity);
        let condemned: Vec<_> = self.escalation.condemned().filter(of_one).cloned().collect();
        // The cause stays that of the failed worker.
        let before = (self.level, self.cause.clone());
        for condemned in condemned {
            let of_it = self.worker_restarts.under_way.get(&condemned.identity);
            let goes_on = of_it.is_some_and(|restart| restart.moves > 1);
            for (identity, slot) in step.view.slots.of_pod(&condemned.identity) {
                if !slot.takes_part() || self.worker_restarts.contains(identity) {
                    continue;
                }
                let cause = Cause {
                    pod: condemned.pod.clone(),
                    node: condemned.node.clone(),
                    ..Cause::unreported(Reason::PodLost, identity)
                };
                if !goes_on {
                    self.begin_worker_restart(identity.clone(), cause, step);
                } else {
                    let consequence = self.worker_consequence(&cause, step);
                    if consequence == Consequence::Fail {
                        return self.fail_exhausted(&cause, step);
                    }
                    self.restart_worker(cause, consequence, step);
                }
            }
        }
        (self.level, self.cause) = before;
    }

    /// The pods to delete, once the restarts that they belong to are durable.
    pub(in super::super) fn condemned(&self, view: &View<'_>) -> Vec<Condemned> {
        let is_written = |identity: &Identity| {
            let restart = self.worker_restarts.under_way.get(identity);
            restart.is_none_or(UnderWay::is_durable)
        };
        let condemned = self.escalation.condemned();
        condemned
            .filter(|condemned| {
                let mut workers = view.slots.of_pod(&condemned.identity);
                workers.all(|(identity, _)| is_written(identity))
            })
            .cloned()
            .collect()
    }
}
