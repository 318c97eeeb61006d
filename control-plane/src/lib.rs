//! The control plane: it reconciles JobSets, coordinates restarts in place, and talks to the node
//! daemons.

pub mod config;
pub mod controllers;
pub mod endpoints;
pub mod hub;
pub mod k8s;
pub mod leader;
pub mod net;
pub mod runtime;
pub mod telemetry;
