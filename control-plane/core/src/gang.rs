//! Gang start: either all pods of a gang are bound to nodes, or none of them is.
//!
//! ```text
//!             fits (Gates), first pod bound (PodGroup)          all bound
//!  Waiting ──────────────────────────────────────> Scheduling ────────────> Scheduled
//!     ^                                                │ scheduleTimeoutSeconds
//!     │ back-off over, no pod left                     v
//!     └──────────────────────────────────────────  BackingOff
//! ```
//!
//! The state is in `status.gangs`, and is written before it is acted upon: pods are released only
//! by durable state, so that a leader that dies between two writes leaves nothing that its
//! successor does not know.
//!
//! Promises:
//! - No pod below the minimum is released to kube-scheduler before the whole minimum has room, and
//!   pods below the minimum are released before optional workers.
//! - A gang that is not bound in time gives back all its nodes: while it backs off its Jobs are
//!   suspended.
//! - Once a gang is scheduled, no pod below its minimum is held back.
//! - A waiting gang is not starved by later ones ([`decide`]).

mod decide;
mod decision;
mod eligible;
mod fit;
mod leaving;
mod marks;
mod members;
mod message;
mod needs;
mod order;
mod progress;
mod quantity;
mod queue;
mod reached;
mod world;

pub use decide::decide;
pub use decision::{Announcement, Decision, Decisions, GangEvent, GroupPolicy, PodGroupRef, PodRef, Write};
pub(crate) use marks::{Marks, goes_by_pod_group, overruled};
pub use marks::{backend, mutate};
pub use members::{dependent, gang_name, members};
pub use needs::{Exclusive, Needs};
pub use quantity::Resources;
pub(crate) use reached::{awaits_group, phase, reached, report, stopped};
pub use world::{Backend, Footprint, Gang, JobSetGangs, Node, Part, Pod, PodPhase, World};

#[cfg(test)]
mod tests;
