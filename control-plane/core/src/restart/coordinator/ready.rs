//! Workers that run but do not work: those whose heartbeat has stopped, and those whose first one
//! is late.
//!
//! Their agents judge that (`lockstep.dev/heartbeat-timeout`, `lockstep.dev/ready-timeout`): they
//! see the worker, so a delayed report cannot make them wrong. `inplace-timeout` bounds the wait
//! for a worker that was not started.

use lockstep_mutants::mutant;

use super::super::view::Slot;
use super::super::{Cause, Heartbeat, Identity, Phase, Reason};
use super::Coordinator;

impl Coordinator {
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
}
