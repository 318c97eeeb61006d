//! Restart groups: one task for each JobSet that restarts in place under supervision.
//!
//! A task watches (stores and the hub's reports), lets the pure coordinator decide, and acts (publishes to the hub, writes
//! `status.inPlaceRestart`, announces). It is the only writer of that part of the status, with one exception: the reconciler raises the
//! generation when a Job failed, which the task follows.

mod announce;
mod basis;
mod blocked;
mod budget;
mod clock;
mod condemn;
mod convert;
mod manager;
mod metrics;
mod mirror;
mod observe;
pub(crate) mod pace;
mod phases;
mod replace;
mod sight;
mod task;
mod traces;
mod write;

pub use announce::Announcer;
pub use clock::Clock;
pub use convert::durable_from;
pub use manager::{Manager, Means, is_group, taken_over};
pub use observe::{View, published, view_of};
pub use sight::{Heard, Sight};
pub use write::{Change, patch};

pub(crate) use convert::sentence;
pub(crate) use phases::{Phase, phases};
