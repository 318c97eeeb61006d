//! The decisions of the pod agent, without the system around them: what the simulation of the restart protocol runs.

pub mod target;
