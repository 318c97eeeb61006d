//! Workers that run and yet do not work: those that give no heartbeat any more, and those that do not come up in time.
//!
//! Up is a worker whose process runs and that, where heartbeats are asked of it, has given its first one. The time for that
//! (`lockstep.dev/ready-timeout`) begins when the worker is seen to be started, and holds for that start: a change of the annotation
//! concerns the next one. A worker that was not started is waited for as long as `inplace-timeout` allows.

use lockstep_mutants::{self as mutants, Mutant};

use super::super::view::{Slot, View};
use super::super::{Cause, Heartbeat, Identity, Incarnation, Observed, Phase, Reason, Report, UnixNanos};
use super::{Coordinator, State};

impl Coordinator {
    /// Notes who was started and is not up yet.
    pub(super) fn note_starting(&mut self, observed: &Observed, view: &View<'_>, now: UnixNanos) {
        let mut known = std::mem::take(&mut self.starting);
        let Some(timeout) = observed.policy.ready_timeout_ms else {
            return;
        };
        if !matches!(self.state, State::InSync | State::Releasing { .. }) {
            return;
        }
        for (identity, slot) in view.slots.iter().filter(|(_, slot)| slot.counts()) {
            let Some((incarnation, report)) = self.seated(identity, slot) else {
                continue;
            };
            let before = known.remove(*identity).filter(|(of, _)| of == incarnation);
            let until = match (report.phase, report.heartbeat) {
                (Phase::Starting, _) | (Phase::Running, Heartbeat::Awaited) => {
                    before.map_or(now.plus_millis(timeout), |(_, until)| until)
                }
                // Out of sight: nobody knows, and it is not asked again.
                (Phase::Unlinked, _) if let Some((_, until)) = before => until,
                _ => continue,
            };
            self.starting
                .insert((*identity).clone(), (incarnation.clone(), until));
        }
    }

    /// Whether this worker runs at the current generation without being alive.
    pub(super) fn not_alive(&self, identity: &Identity, slot: &Slot<'_>, now: UnixNanos) -> Option<Cause> {
        let (_, report) = slot.current?;
        let late = || {
            self.starting
                .get(identity)
                .is_some_and(|(_, until)| now >= *until && !mutants::is(Mutant::NeverLate))
        };
        let (reason, at) = match (report.phase, report.heartbeat) {
            (Phase::Running, Heartbeat::Missed) => (Reason::HeartbeatMissed, Some(report.since)),
            (Phase::Starting, _) | (Phase::Running, Heartbeat::Awaited) if late() => {
                (Reason::ReadyTimeout, None)
            }
            _ => return None,
        };
        self.seated(identity, slot)?;
        Some(Cause {
            reason,
            identity: Some(identity.clone()),
            pod: report.pod_name.clone(),
            node: report.node.clone(),
            exit: None,
            at,
        })
    }

    /// The worker's incarnation, where it is the one that is released now.
    fn seated<'a>(&self, identity: &Identity, slot: &Slot<'a>) -> Option<(&'a Incarnation, &'a Report)> {
        slot.current.filter(|(incarnation, report)| {
            report.generation == self.wanted(identity) && self.seats.get(identity) == Some(*incarnation)
        })
    }
}
