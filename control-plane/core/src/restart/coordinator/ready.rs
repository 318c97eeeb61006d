//! Workers that run and yet do not work: those that give no heartbeat any more, and those that gave no first one in time.
//!
//! Their agents judge that (`lockstep.dev/heartbeat-timeout`, `lockstep.dev/ready-timeout`): they see the worker, and no news that is held up
//! on its way can make them wrong. A worker that was not started is waited for as long as `inplace-timeout` allows.

use lockstep_mutants::{self as mutants, Mutant};

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
            Heartbeat::Overdue if !mutants::is(Mutant::NeverLate) => Reason::ReadyTimeout,
            _ => return None,
        };
        let is_released =
            report.generation == self.wanted(identity) && self.released_in.get(identity) == Some(incarnation);
        is_released.then(|| Cause::reported(reason, identity, report, None))
    }
}
