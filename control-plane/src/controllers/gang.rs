//! Starts gangs: looks at all nodes and all gangs of the cluster, and starts the gangs that fit.
//!
//! Decisions are made in [`lockstep_core::gang`].
//!
//! Promises: nothing is watched or asked before a JobSet has a gang. Decisions about all gangs are
//! made one after another, and take the controller's own writes into account. A write names the
//! state that it was decided on. Failures are retried with growing pauses.
//!
//! ```text
//!  watches (JobSets, Jobs) ──> Stores ──┐
//!  watches (nodes, all pods) ─> Cluster ┴─> World ──> decide ──> status.gangs, gates, PodGroups
//! ```

mod cluster;
mod controller;
mod discovery;
mod groups;
mod lean_objects;
mod metrics;
mod task;
mod watch;
mod write_failures;
mod writer;

pub(crate) use controller::Controller;
pub(crate) use discovery::PodGroups;
