//! How long a gang may be without its pods, and when to look at it again.

use jiff::{SignedDuration, Timestamp};

use super::{Entry, is_awaited};

/// The longest that pods which have not been created keep nodes from others, whatever time-out
/// their user asks for.
const LONGEST_GRACE: SignedDuration = SignedDuration::from_secs(60);

impl Entry<'_> {
    /// Until when a gang keeps its place in the queue although its pods are not there.
    pub(super) fn grace_ends(&self) -> Option<Timestamp> {
        let since = self.gang.asked.unwrap_or(self.jobset.created);
        since.checked_add(self.grace()).ok()
    }

    /// From when on it is told that pods are not there. The Jobs of a gang that has backed off are
    /// resumed once it waits: their start is of before until then.
    pub(super) fn is_late_from(&self) -> Option<Timestamp> {
        self.progress.waits_since()?.checked_add(self.grace()).ok()
    }

    fn grace(&self) -> SignedDuration {
        self.gang.timeout.min(LONGEST_GRACE)
    }

    /// When something about it may be different although nothing has changed.
    pub(super) fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let lacks_pods = self.waits_for_room() && self.below().any(|seat| is_awaited(self.gang, seat));
        let keeps_place = lacks_pods || self.gang.pod_group.is_some() && !self.has_pods();
        let grace = self.grace_ends().filter(|_| keeps_place);
        // Of a PodGroup that is not told.
        let late = self.is_late_from().filter(|_| lacks_pods);
        let ends = [grace, late, self.progress.until()].into_iter().flatten();
        ends.filter(|at| *at > now).min()
    }
}
