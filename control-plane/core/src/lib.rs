//! Decisions of the control plane: data in, data out. No I/O, no clock, no async, no logging.
//!
//! [`reconcile::plan`] decides about a JobSet's Jobs, Service and status; [`restart`] about the
//! restarts in place of its workers.

pub mod admission;
pub mod common;
pub mod gang;
pub mod jobset;
pub mod ray;
pub mod reconcile;
pub mod restart;

pub use common::features::Features;
pub use jobset::observed::Observed;
pub use jobset::plan::Plan;
