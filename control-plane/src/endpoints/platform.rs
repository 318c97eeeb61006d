//! The platform API (`lockstep.platform.v1`): restart groups, for software that builds on Lockstep.
//! And a status page that shows them to people (`page`).
//!
//! ```text
//! group tasks ──> Board (the newest state of each group) ──> ListGroups, WatchGroups
//!         └── announcements ──> its last restarts ──> ListRestarts
//!                                      hub ──> ListNodes
//!                                      RestartGroup ──> annotation of the JobSet ──> watch ──> group task
//!                                    RestartWorkers ──> annotation of the JobSet ──> watch ──> group task
//!                DryRunRestart, DryRunRestartWorkers ──> question ──> group task ──> answer
//!                                      SetSuspended ──> spec.suspend ──> watch ──> reconciler, group task
//! ```
//!
//! Promises: group tasks never wait for a reader, and share their state without a copy. A reader
//! gets the newest state of a group, and nothing queues up for it. The API server authorizes every
//! call. A request for a restart is durable before it is answered, and the group's only coordinator
//! handles it. Errors carry details for programs besides their text (`error_details`).
//!
//! Every replica serves the API; a replica that does not lead answers so. Health and reflection
//! (`health`) need no token: they tell which replica leads, and what the public .proto contains.

mod audit;
mod authorize;
mod calls;
mod cluster_authorizer;
mod convert;
mod deadline;
mod error_details;
mod fields;
mod follow;
mod health;
mod large;
mod page;
mod restart_workers;
mod server;
mod service;
mod suspend;
mod watch_slots;
mod watching;
mod written;

pub use authorize::{Authorizer, Caller};
pub use cluster_authorizer::ClusterAuthorizer;
pub use page::{Replica, StatusPage, WhoLeads};
pub use service::PlatformService;

pub(crate) use server::run;

#[cfg(test)]
mod tests;
