//! Gang start: a gang's pods are bound to nodes together, or none of them is.
//!
//! ```text
//!             fits (Gates), first pod bound (PodGroup)          all bound
//!  Waiting ──────────────────────────────────────> Scheduling ────────────> Scheduled
//!     ^                                                │ scheduleTimeoutSeconds
//!     │ back-off over, no pod left                     v
//!     └──────────────────────────────────────────  BackingOff
//! ```
//!
//! The state stands in `status.gangs` and is written before anything is done about it: a pod is let
//! go only by what is durable, so that a leader that dies between two writes leaves nothing that
//! its successor does not know.
//!
//! Promises:
//! - No pod below the minimum is let to the scheduler before the whole minimum has room, and pods
//!   below the minimum go before optional workers.
//! - What is not bound in time is given back whole: while a gang backs off its Jobs are suspended.
//! - Once a gang is scheduled nothing holds a pod below its minimum back any more.
//! - A gang that waits is not starved by those that come after it ([`decide`]).

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
pub use decision::{Announcement, Decision, Decisions, GroupPolicy, PodGroupRef, PodRef, Word, Write};
pub(crate) use marks::{Marks, goes_by_pod_group, overruled};
pub use marks::{backend, mutate};
pub use members::{dependent, gang_name, members};
pub use needs::{Exclusive, Needs};
pub use quantity::Resources;
pub(crate) use reached::{awaits_group, phase, reached, report, stopped};
pub use world::{Backend, Footprint, Gang, JobSetGangs, Node, Part, Pod, PodPhase, World};

#[cfg(test)]
mod tests;
