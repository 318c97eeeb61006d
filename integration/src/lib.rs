//! A real Kubernetes cluster on one machine, and what tests need to work with it.
//!
//! - [`tools`] finds or builds the programs.
//! - [`cluster`] brings clusters up and takes them down.
//! - [`image`] makes container images from local files.
//! - [`harness`] has JobSets of shell workers, seen from outside.
//! - [`ports`] finds ports that are free.
//! - [`target`] is where builds and measurements go.
//! - [`wait`] waits for something to be so.

pub mod cluster;
pub mod command;
pub mod harness;
pub mod image;
pub mod ports;
pub mod progress;
pub mod target;
pub mod tools;
pub mod wait;
