//! The restart coordinator: one for each group (a JobSet that restarts in place). It is pure.
//!
//! ```text
//!              failure, lost identity
//!  InSync(g) ──────────────────────────> Stopping(g+1)
//!     ^                                      │ every expected identity parked at g+1
//!     │ every worker running or done         v
//!  Releasing(g+1) <───────────────────── Parked(g+1)
//!                     write durable
//!
//!  Releasing(g+1)          ── a released incarnation fails ──> Stopping(g+2), counted
//!  Stopping, Parked        ── more failures ──> absorbed; replacements join g+1
//!  any                     ── time-out, done work, protocol error ──> Recreating(g+1) ──> InSync
//!  maxRestarts are counted ── another counted restart ──> Failed
//! ```
//!
//! A failure causes no delay, unless the same worker fails twice within seconds of its release.
//! Then it stays parked for a second, and twice as long each further time. Requested restarts do
//! not count.
//!
//! A worker with its own restart scope restarts without a barrier: it takes the next generation,
//! and the others keep theirs.
//!
//! A worker without an agent restarts by container: the node daemon kills what runs at an older
//! generation, and the kubelet starts it again at the new one. There is no barrier: Parked means
//! that no container of an older generation is left.
//!
//! Promises: a restart needs evidence about an incarnation that is released at the current
//! generation; nothing is released at a generation that is not durable; a failure counts once; the
//! generation never falls.

mod blocked;
mod cause;
mod coordinator;
mod durable;
mod gather;
mod ids;
mod lost_pods;
mod observed;
mod output;
mod policy;
mod report;
mod standby;
mod step_delay;
mod view;

pub use crate::jobset::in_place::RestartLevel;
pub use blocked::{Blockage, Blocked, BlockedReason};
pub use cause::{Cause, Reason};
pub use coordinator::{Coordinator, Effect, Fate, GroupPhase, Preview, Unmoved, WORKER_RESTARTS_AT_ONCE};
pub use durable::{Durable, DurablePhase, Impossible};
pub use gather::{Gathered, Placed, gather};
pub use ids::{Epoch, Generation, Identity, Incarnation, UnixNanos};
pub use lockstep_protocol::progress::Progress;
pub use lost_pods::{LostPods, Occupancy, PodPlace, Replacement, Vacant, is_open, places, replacement_pod};
pub use observed::{Observed, PodFact, Scope, Worker};
pub use output::{Announcement, Condemned, Desired, Output, Timeline, WorkerRestart};
pub use policy::{
    EscalateAfter, Policy, TerminalAction, TerminalRule, grace_ms, heartbeat_timeout_ms, ready_timeout_ms,
};
pub use report::{Difference, Exit, Heartbeat, Phase, Report};
pub use standby::{StandbyReport, Standbys, Starts};
pub use step_delay::StepDelay;

#[cfg(test)]
mod tests;
