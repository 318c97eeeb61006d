//! Starts gangs: compares all gangs with all nodes of the cluster, and starts the gangs that fit.
//!
//! Decisions are made in [`lockstep_core::gang`].
//!
//! Promises: no node or pod is watched before a JobSet has a gang. Each decision covers all gangs,
//! and takes the controller's own writes into account. A write names the state that it is based on.
//! Failures are retried with growing pauses.
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
mod version;
mod watch;
mod write_failures;
mod writer;

pub(crate) use controller::Controller;
pub(crate) use discovery::PodGroups;
