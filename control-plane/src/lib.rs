//! The control plane: reconciles JobSets, coordinates restarts in place, and talks to the node daemons.

pub mod hub;
pub mod lease;
pub mod tls;
