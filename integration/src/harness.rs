//! Shared by the tests on real nodes and the benchmarks: JobSets of shell workers, observed from
//! outside.
//!
//! Workers are observed from the host, through `/proc`, and through the API server, as a user
//! would. Nothing here asks the product.

pub mod access;
pub mod controller;
pub mod group;
pub mod hollow;
pub mod manifest;
pub mod process;
pub mod stopwatch;

pub use crate::wait::eventually;
pub use access::{Access, Namespace};
pub use controller::{ControlPlane, Webhooks};
pub use group::{Group, Worker};
pub use manifest::Manifest;
pub use process::Process;
