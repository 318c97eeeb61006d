//! What the process of the control plane and that of the node daemon have in common.
//!
//! The pod agent has none of it: it is process 1 of a worker's container and stays small.

pub mod logging;
pub mod rate_limit;
pub mod threads;
pub mod turns;
