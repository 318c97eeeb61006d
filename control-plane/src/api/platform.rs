//! The platform API (`lockstep.platform.v1`): restart groups, for those who build on Lockstep. And
//! a page that shows them to people (`page`).
//!
//! ```text
//! group tasks ──> Board (the newest state of each group) ──> ListGroups, WatchGroups
//!         └── announcements ──> its last restarts ──> ListRestarts
//!                                      hub ──> ListNodes
//!                                      RestartGroup ──> annotation of the JobSet ──> watch ──> group task
//!                                    RestartWorkers ──> another one   ──> watch ──> group task
//!                DryRunRestart, DryRunRestartWorkers ──> question ──> group task ──> answer
//!                                      SetSuspended ──> spec.suspend ──> watch ──> reconciler, group task
//! ```
//!
//! Promises: group tasks never wait for a reader, and hand over what they have without a copy; a
//! reader is sent the newest state of a group, or nothing, and nothing queues up for it; nothing is
//! said to anybody whom the API server does not allow it; a request for a restart is durable before
//! it is answered, and is acted upon by the one coordinator of the group; who is refused is told
//! why, as people read it and as programs do (`refused`).
//!
//! Every replica serves it. One that does not lead says so. Beside it are health and reflection
//! (`open`), which ask for no token: they tell which replica leads, and what the public .proto
//! says.

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
