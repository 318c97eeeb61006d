//! The other workers of a pod that goes because one of them is restarted alone.

use super::super::super::view::View;
use super::super::super::{Cause, Condemned, Identity, Reason};
use super::super::Coordinator;
use super::super::answer::Answer;
use super::super::step::Step;
use super::under_way::UnderWay;

impl Coordinator {
    /// The other workers of a pod that goes because one of them is restarted alone go with it. They have not failed, so that is not counted; but where
    /// it comes up in the next pod neither it is, or they would be restarted without end.
    pub(in super::super) fn begin_with_pod_mates(&mut self, step: &mut Step<'_>) {
        if !self.may_release(step.observed) {
            return;
        }
        let of_one = |condemned: &&Condemned| self.worker_restarts.contains(&condemned.identity);
        let condemned: Vec<_> = self.escalation.condemned().filter(of_one).cloned().collect();
        // What the group is restarted for is the worker that has failed.
        let told = (self.level, self.cause.clone());
        for condemned in condemned {
            let of_it = self.worker_restarts.under_way.get(&condemned.identity);
            let goes_on = of_it.is_some_and(|restart| restart.moves > 1);
            for (identity, slot) in step.view.slots.of_pod(&condemned.identity) {
                if !slot.counts() || self.worker_restarts.contains(identity) {
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
                    let answer = self.answer_worker_failure(&cause, step);
                    if answer == Answer::Fail {
                        return self.exhaust(&cause, step);
                    }
                    self.restart_worker(cause, answer, step);
                }
            }
        }
        (self.level, self.cause) = told;
    }

    /// The pods that are to be deleted, once it is durable whose restart that belongs to.
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
