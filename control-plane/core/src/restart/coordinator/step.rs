//! The context of one step.

use super::super::view::{Slot, View};
use super::super::{Announcement, Cause, Observed, Output, UnixNanos};

/// One step: what it reads, and the output that it fills.
pub(super) struct Step<'a> {
    pub(super) observed: &'a Observed,
    pub(super) view: &'a View<'a>,
    pub(super) now: UnixNanos,
    pub(super) out: Output,
}

impl<'a> Step<'a> {
    /// The deadline of what begins now: after `inplace-timeout`.
    pub(super) fn deadline(&self) -> UnixNanos {
        self.now.plus_millis(self.observed.policy.timeout_ms)
    }

    /// The worker of this cause, if it is still expected.
    pub(super) fn slot_of(&self, cause: &Cause) -> Option<&'a Slot<'a>> {
        let identity = cause.identity.as_ref();
        identity.and_then(|identity| self.view.slots.get(identity))
    }

    pub(super) fn announce(&mut self, announcement: Announcement) {
        self.out.announcements.push(announcement);
    }
}
