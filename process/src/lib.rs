//! What the processes of the control plane and the node daemon share.
//!
//! The pod agent does not use it: it is PID 1 of a worker container and stays small.

pub mod logging;
pub mod rate_limit;
pub mod threads;
pub mod turns;
