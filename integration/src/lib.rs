//! A real Kubernetes cluster on one machine, and what tests need to work with it.
//!
//! - [`tools`] finds or builds the programs.
//! - [`cluster`] brings clusters up and takes them down.
//! - [`image`] makes container images from local files.
//! - [`harness`] has JobSets of shell workers, seen from outside.
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
