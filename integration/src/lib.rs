//! A real Kubernetes cluster on one machine, and helpers for tests that use it.
//!
//! - [`tools`] finds or builds the programs.
//! - [`cluster`] starts and removes clusters.
//! - [`image`] makes container images from local files.
//! - [`harness`] runs JobSets of shell workers and observes them from outside.
//! - [`host`] finds free ports and the build folder.
//! - [`wait`] waits for conditions.

pub mod cluster;
pub mod command;
pub mod harness;
pub mod host;
pub mod image;
pub mod progress;
pub mod tools;
pub mod wait;
