//! What the real-node tests and the benchmark share: JobSets of shell workers, and how they look from outside.
//!
//! Workers are watched from the host, through `/proc`, and from the API server, as a user would. Nothing here asks the product.

pub mod access;
pub mod controller;
pub mod group;
pub mod hollow;
pub mod manifest;
pub mod process;
pub mod stopwatch;

pub use crate::wait::eventually;
pub use access::{Access, Namespace};
pub use controller::ControlPlane;
pub use group::{Group, Worker};
pub use manifest::Manifest;
pub use process::Process;
