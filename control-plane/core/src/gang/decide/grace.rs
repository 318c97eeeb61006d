//! How long a gang may wait for its pods to be created, and when to decide again.

use jiff::{SignedDuration, Timestamp};

use super::{Entry, is_awaited};

/// The longest time for which missing pods reserve nodes, whatever the gang's time-out.
const LONGEST_GRACE: SignedDuration = SignedDuration::from_secs(60);

impl Entry<'_> {
    /// When a gang without its pods loses its position in the queue.
    pub(super) fn grace_ends(&self) -> Option<Timestamp> {
        let since = self.gang.asked.unwrap_or(self.jobset.created);
        since.checked_add(self.grace()).ok()
    }

    /// When missing pods begin to be reported, for a gang that has backed off. Its Jobs are resumed
    /// once it waits; until then their start time is an old one.
    pub(super) fn is_late_from(&self) -> Option<Timestamp> {
        self.progress.waits_since()?.checked_add(self.grace()).ok()
    }

    fn grace(&self) -> SignedDuration {
        self.gang.timeout.min(LONGEST_GRACE)
    }

    /// When its state may change only because time passes.
    pub(super) fn wake_at(&self, now: Timestamp) -> Option<Timestamp> {
        let lacks_pods = self.waits_for_room()
            && self
                .minimum_pods()
                .any(|expected| is_awaited(self.gang, expected));
        let keeps_position = lacks_pods || self.gang.pod_group.is_some() && !self.has_pods();
        let grace = self.grace_ends().filter(|_| keeps_position);
        // With a PodGroup this is not reported.
        let late = self.is_late_from().filter(|_| lacks_pods);
        let ends = [grace, late, self.progress.until()].into_iter().flatten();
        ends.filter(|at| *at > now).min()
    }
}
