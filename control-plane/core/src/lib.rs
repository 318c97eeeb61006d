//! Decisions of the control plane: data in, data out. No I/O, no clock, no async, no logging.
//!
//! [`reconcile::plan`] decides about a JobSet's Jobs, Service and status; [`restart`] about the restarts in place of its workers.

pub mod admission;
mod children;
pub mod completed;
mod depends_on;
mod elastic;
mod execution_policy;
pub mod extent;
mod failure_policy;
pub mod features;
pub mod gang;
mod go_regex;
pub mod in_place;
pub mod jobset;
pub mod limits;
pub mod network;
pub mod observed;
pub mod patterns;
pub mod placement;
pub mod plan;
pub mod pod;
pub mod ray;
pub mod reconcile;
pub mod restart;
mod resume;
pub mod retry;
mod semantic;
pub mod stages;
mod startup;
mod status;
mod success_policy;
#[cfg(test)]
mod testing;
mod ttl;
mod upstream_agent;
pub mod validation;
mod volume_claims;

pub use features::Features;
pub use observed::Observed;
pub use plan::Plan;
