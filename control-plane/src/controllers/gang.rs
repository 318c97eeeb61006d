//! Gangs start: looks at all nodes and all gangs of the cluster, and lets those go that fit.
//!
//! What is decided stands in [`lockstep_core::gang`].
//!
//! Promises: nothing is watched or asked before a JobSet has a gang; decisions about all gangs are made one after another, on what this
//! process has written itself too; a write names the state that was decided on; what failed is tried again, ever more slowly.
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
