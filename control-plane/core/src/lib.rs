//! Decisions of the control plane: data in, data out. No I/O, no clock, no async, no logging.
//!
//! [`reconcile::plan`] decides about a JobSet's Jobs, Service and status; [`restart`] about the restarts in place of its workers.

mod children;
mod depends_on;
mod failure_policy;
pub mod in_place;
pub mod jobset;
mod network;
pub mod observed;
pub mod plan;
pub mod reconcile;
pub mod restart;
mod resume;
mod startup;
mod status;
mod success_policy;
#[cfg(test)]
mod testing;
mod ttl;
pub mod validation;

pub use observed::Observed;
pub use plan::Plan;
