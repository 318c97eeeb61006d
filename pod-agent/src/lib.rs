//! The decisions of the pod agent, without the system around them. The simulation of the restart
//! protocol runs them.

pub mod machine;
