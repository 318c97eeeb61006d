//! The control plane: reconciles JobSets, coordinates restarts in place, and talks to the node daemons.

pub mod apply;
pub mod args;
mod client;
pub mod config;
mod crd;
mod gang;
pub mod group;
pub mod hub;
mod leader;
pub mod lease;
pub mod logging;
pub mod metrics;
mod namespace;
pub mod placement;
pub mod platform;
mod ray;
pub mod reconcile;
mod retry;
pub mod runtime;
pub mod serve;
pub mod settings;
pub mod tls;
pub mod traces;
mod unfit;
pub mod watch;
pub mod webhook;
mod work;
