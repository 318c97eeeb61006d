//! The PodGroup of a gang that kube-scheduler starts.
//!
//! - While the gang waits or is being bound, its PodGroup starts all pods together, except those
//!   whose work is done.
//! - If the gang has started, some pods below the minimum have ended, and another pod of the group
//!   needs a node, the PodGroup lets each pod start by itself.
//! - If the gang has started otherwise, the PodGroup is left unchanged.
//! - If the gang starts over after some pods have ended, the PodGroup is discarded first.
//! - While the gang starts over and earlier pods still exist, the PodGroup is ignored.

use jiff::Timestamp;
use lockstep_api::GangPhase;

use super::super::order::ExpectedPod;
use super::super::{Backend, GroupPolicy, PodGroupRef, message};
use super::{Demand, Entry, Queue, demands, is_awaited};

impl<'a> Entry<'a> {
    /// Requests the gang's PodGroup, for which kube-scheduler waits, once all gangs of higher
    /// priority that were created earlier are bound.
    pub(super) fn ask_for_group(&mut self, queue: &mut Queue<'a>, now: Timestamp) {
        let waits = *self.progress.phase() == GangPhase::Waiting;
        let demands = demands(self.gang, self.outstanding());
        if !self.has_pods() {
            // Until a pod states its priority the gang is first in the queue, but not forever.
            if self.grace_ends().is_none_or(|end| end <= now) {
                return;
            }
        } else if waits && queue.is_behind(self.position(), &demands) {
            self.progress.note_shortage(message::behind());
        } else {
            self.pod_group = self.wanted_group();
        }
        if waits {
            let is_gated = |expected: &ExpectedPod<'_>| expected.pod.is_some_and(|pod| pod.gated);
            let is_ungrouped = self.minimum_pods().any(is_gated);
            self.progress.ungrouped(is_ungrouped);
            if self.pod_group.is_some() && !is_ungrouped {
                self.explain(queue, &demands);
            }
        }
        let is_on_its_way = matches!(self.progress.phase(), GangPhase::Waiting | GangPhase::Scheduling);
        if is_on_its_way && queue.empty.fits(&demands).is_ok() {
            queue.goes_before(self.position(), &demands);
        }
    }

    /// True if the gang starts over while earlier pods still exist. kube-scheduler would count
    /// them, so its Jobs stay suspended, and it has no state.
    pub(super) fn is_ending(&self) -> bool {
        let mut pods = self.gang.parts.iter().flat_map(|part| &part.pods);
        let starts_over = self.gang.pod_group.is_some() && self.gang.is_stopped && self.progress.is_new();
        starts_over && pods.any(|pod| pod.node.is_some() && !pod.is_terminal())
    }

    /// The PodGroup as it should be now. kube-scheduler does not count pods that have ended, and
    /// would wait for them forever. So a waiting gang needs only the remaining pods, and after its
    /// start a replacement pod starts by itself.
    fn wanted_group(&self) -> Option<PodGroupRef> {
        let name = self.gang.pod_group.clone()?;
        let minimum_pods = || self.minimum_pods();
        let left = minimum_pods().filter(|expected| !expected.done).count();
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        let (policy, exact) = if self.progress.was(GangPhase::Scheduled) {
            let in_group = |expected: &&ExpectedPod<'_>| {
                expected.in_minimum || expected.pod.is_some_and(|pod| pod.in_group)
            };
            let mut in_group = self.expected_pods.iter().filter(in_group);
            let is_short =
                minimum_pods().any(|expected| expected.done) && in_group.any(|expected| !expected.is_bound());
            (GroupPolicy::Basic, is_short)
        } else {
            let waits = self.progress.was(GangPhase::Waiting) && *self.progress.phase() == GangPhase::Waiting;
            (GroupPolicy::Gang(left), waits)
        };
        let is_empty = policy == GroupPolicy::Gang(0);
        let priority_class = self.gang.priority_class.clone();
        (!is_empty).then_some(PodGroupRef {
            name,
            policy,
            priority_class,
            exact,
        })
    }

    /// The PodGroup to discard when a gang starts over after some of its pods have ended: it may
    /// release pods one by one, or wait for more than there will be. The Jobs are not resumed
    /// before the gang waits.
    pub(super) fn outdated_group(&self) -> Option<String> {
        let starts_over =
            *self.progress.phase() == GangPhase::Waiting && !self.progress.was(GangPhase::Waiting);
        let has_ended = self.minimum_pods().any(|expected| expected.done);
        self.gang.pod_group.clone().filter(|_| starts_over && has_ended)
    }

    /// Records why kube-scheduler does not start the gang, as far as it is known here.
    fn explain(&mut self, queue: &mut Queue<'a>, demands: &[Demand<'a>]) {
        let uncreated = self
            .minimum_pods()
            .filter(|expected| is_awaited(self.gang, expected))
            .count();
        if uncreated > 0 {
            return;
        }
        match queue.room.fits(demands) {
            Ok(_) => self.progress.fits(),
            Err(shortfall) => {
                let never = queue.empty.fits(demands).err();
                let never = never.map(|never| message::never(demands, &never));
                self.progress
                    .note_shortage(never.unwrap_or_else(|| message::short(demands, &shortfall)));
            }
        }
    }

    /// The API server no longer serves PodGroups. A gang that waits for one backs off, and its Jobs
    /// are recreated to start by gates.
    pub(super) fn lose_group(&mut self, now: Timestamp) {
        let mut pods = self.gang.parts.iter().flat_map(|part| &part.pods);
        // Jobs that do not run hold no nodes.
        let waits = self.gang.asked.is_some()
            && self.gang.backend() == Backend::PodGroup
            && *self.progress.phase() == GangPhase::Waiting
            && pods.all(|pod| pod.node.is_none());
        if waits {
            self.progress.lose_group(self.jobset, now);
        }
    }
}
