//! Ray's resources, compiled to JobSets.
//!
//! ```text
//! RayCronJob ──> RayJob, at its times ──> RayCluster, and a Job that submits to it
//!
//! RayCluster ──> JobSet: head (1 pod) <── dependsOn Ready ── one replicatedJob for each worker group
//!           └──> Service <name>-head-svc
//! ```
//!
//! A worker group is one Indexed Job with as many pods as the group has (replicas x hosts), and
//! grows and shrinks like the Jobs of ElasticJobSet. Other changes take effect once the cluster is
//! suspended and resumed.

pub mod admission;
pub mod cluster;
pub mod cron;
pub mod job;
mod jobset;
pub mod names;
mod pod;
mod refusal;
mod service;
mod start;
mod status;
mod submitter;
mod text;
pub mod validation;
mod warnings;

pub use service::dashboard_port;

#[cfg(test)]
mod tests;
