//! Lockstep's node daemon: one per node.
//!
//! It puts the pod agent in front of worker containers as they are created (NRI), keeps a link to
//! every agent (Unix sockets), and watches containers end (containerd's events, CRI). It carries
//! all of that to the control plane, and the control plane's orders back (gRPC). It has no access
//! to the Kubernetes API.

pub mod agents;
pub mod args;
pub mod clock;
pub mod cri;
pub mod events;
pub mod health;
pub mod hub_link;
pub mod install;
pub mod nri;
pub mod plain;
pub mod pods;
pub mod runtime;
pub mod worker;

#[cfg(test)]
mod testing;

#[cfg(test)]
#[path = "../../proto/recorded/read.rs"]
mod recorded;
