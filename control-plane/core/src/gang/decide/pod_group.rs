//! The PodGroup of a gang that kube-scheduler starts.
//!
//! | the gang | its PodGroup |
//! |---|---|
//! | waits, or is being bound | has all its pods start together, but for those whose work is done |
//! | has started, some pods below the minimum have ended, and another of the group is to be bound | lets each go by itself |
//! | has started otherwise | is left as it is |
//! | starts over after some have ended | is discarded first |
//! | starts over, and pods of before have not gone | is not looked at |

use jiff::Timestamp;
use lockstep_api::GangPhase;

use super::super::order::Seat;
use super::super::{Backend, GroupPolicy, PodGroupRef, message};
use super::{Demand, Entry, Queue, groups, is_awaited};

impl<'a> Entry<'a> {
    /// Has the gang's PodGroup made, which kube-scheduler waits for: not before the gangs of higher
    /// priority that were created earlier are bound.
    pub(super) fn ask_for_group(&mut self, queue: &mut Queue<'a>, now: Timestamp) {
        let waits = *self.progress.phase() == GangPhase::Waiting;
        let groups = groups(self.gang, self.outstanding());
        if !self.has_pods() {
            // Until a pod tells its priority it is first in the queue, but not for ever.
            if self.grace_ends().is_none_or(|end| end <= now) {
                return;
            }
        } else if waits && queue.is_behind(self.place(), &groups) {
            self.progress.lacks(message::behind());
        } else {
            self.group = self.wanted_group();
        }
        if waits {
            let is_gated = |seat: &Seat<'_>| seat.pod.is_some_and(|pod| pod.gated);
            let is_ungrouped = self.below().any(is_gated);
            self.progress.ungrouped(is_ungrouped);
            if self.group.is_some() && !is_ungrouped {
                self.explain(queue, &groups);
            }
        }
        let is_on_its_way = matches!(self.progress.phase(), GangPhase::Waiting | GangPhase::Scheduling);
        if is_on_its_way && queue.empty.fits(&groups).is_ok() {
            queue.goes_before(self.place(), &groups);
        }
    }

    /// True if the gang starts over while pods of before have not gone. kube-scheduler would count
    /// them: its Jobs stay suspended, and it has no state.
    pub(super) fn is_ending(&self) -> bool {
        let mut pods = self.gang.parts.iter().flat_map(|part| &part.pods);
        let starts_over = self.gang.pod_group.is_some() && self.gang.is_stopped && self.progress.is_new();
        starts_over && pods.any(|pod| pod.node.is_some() && !pod.is_terminal())
    }

    /// The PodGroup as it should be now. kube-scheduler counts no pods that have ended, and would
    /// wait for them for ever: a gang that waits needs those that are left, and where it has
    /// started what takes the place of others goes by itself.
    fn wanted_group(&self) -> Option<PodGroupRef> {
        let name = self.gang.pod_group.clone()?;
        let below = || self.below();
        let left = below().filter(|seat| !seat.done).count();
        let left = u32::try_from(left).unwrap_or(u32::MAX);
        let (policy, exact) = if self.progress.was(GangPhase::Scheduled) {
            let in_group = |seat: &&Seat<'_>| seat.below || seat.pod.is_some_and(|pod| pod.in_group);
            let mut in_group = self.seats.iter().filter(in_group);
            let is_short = below().any(|seat| seat.done) && in_group.any(|seat| !seat.is_bound());
            (GroupPolicy::Basic, is_short)
        } else {
            let waits = self.progress.was(GangPhase::Waiting) && *self.progress.phase() == GangPhase::Waiting;
            (GroupPolicy::Gang(left), waits)
        };
        let is_empty = policy == GroupPolicy::Gang(0);
        (!is_empty).then_some(PodGroupRef { name, policy, exact })
    }

    /// The PodGroup of a gang that starts over although some of its pods have ended: it may let
    /// pods go one by one, or wait for more than there will be. The Jobs are not resumed before the
    /// gang waits.
    pub(super) fn outdated_group(&self) -> Option<String> {
        let starts_over =
            *self.progress.phase() == GangPhase::Waiting && !self.progress.was(GangPhase::Waiting);
        let has_ended = self.below().any(|seat| seat.done);
        self.gang.pod_group.clone().filter(|_| starts_over && has_ended)
    }

    /// Says why kube-scheduler does not start the gang, as far as that is known here.
    fn explain(&mut self, queue: &mut Queue<'a>, groups: &[Demand<'a>]) {
        let uncreated = self.below().filter(|seat| is_awaited(self.gang, seat)).count();
        if uncreated > 0 {
            return;
        }
        match queue.room.fits(groups) {
            Ok(_) => self.progress.fits(),
            Err(shortfall) => {
                let never = queue.empty.fits(groups).err();
                let never = never.map(|never| message::never(groups, &never));
                self.progress
                    .lacks(never.unwrap_or_else(|| message::short(groups, &shortfall)));
            }
        }
    }

    /// The API server no longer serves PodGroups. A gang that waits for one is given back, and its
    /// Jobs are recreated for the gates.
    pub(super) fn lose_group(&mut self, now: Timestamp) {
        let mut pods = self.gang.parts.iter().flat_map(|part| &part.pods);
        // Jobs that do not run have been given back already.
        let waits = self.gang.asked.is_some()
            && self.gang.backend() == Backend::PodGroup
            && *self.progress.phase() == GangPhase::Waiting
            && pods.all(|pod| pod.node.is_none());
        if waits {
            self.progress.lose_group(self.jobset, now);
        }
    }
}
