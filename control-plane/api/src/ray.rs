//! Types of `ray.io/v1`, as KubeRay's users know them.
//!
//! Promises: what a manifest states and these types do not know is kept by name ([`Unknown`]), so that it can be named to its user; only
//! `status` is ever written, so nothing that was stored is lost.

mod cluster;
pub mod conditions;
mod cron;
mod job;
pub mod keys;
mod unknown;

pub use cluster::{
    HeadGroupSpec, HeadInfo, RayCluster, RayClusterSpec, RayClusterState, RayClusterStatus, WorkerGroupSpec,
};
pub use cron::{ConcurrencyPolicy, RayCronJob, RayCronJobSpec, RayCronJobStatus};
pub use job::{
    RayJob, RayJobDeploymentStatus, RayJobInfo, RayJobRetryPolicy, RayJobSpec, RayJobStatus,
    RayJobSubmissionMode, SubmitterConfig,
};
pub use unknown::Unknown;

/// API group of Ray's resources.
pub const GROUP: &str = "ray.io";
/// The version that is served and stored.
pub const VERSION: &str = "v1";
/// `spec.managedBy` of objects that this controller looks after, as an absent field does.
pub const CONTROLLER_NAME: &str = "lockstep.dev/ray-controller";
