//! Kubernetes API types of Lockstep: the JobSet CRD `jobset.x-k8s.io/v1alpha2`, and the names that go with it.
//!
//! What this crate promises:
//! - The types accept every object that the upstream CRD's schema accepts, defaulted or not, and writing back
//!   what was read loses nothing that upstream's schema knows (a quantity given as a number becomes the same as
//!   text). Enumerations keep values that they do not know.
//! - The schema is a superset of upstream's: [`crd::definition`] is compared with upstream's file by a test, and every
//!   addition is listed there.
//! - No I/O, no clock, no logging: constants, data and pure functions.
//!
//! Objects are written whole (`PUT`) or by server-side apply: absent fields are not serialized, so a JSON merge
//! patch made from these types clears nothing.

pub mod annotations;
pub mod conditions;
pub mod crd;
pub mod duration;
pub mod events;
mod gang;
mod jobset;
pub mod labels;
pub mod naming;
mod object;
pub mod ray;
mod spec;
mod status;
mod string_enum;
mod target;
pub mod text;
mod volumes;

pub use gang::{
    DEFAULT_SCHEDULE_TIMEOUT_SECONDS, Gang, GangBackend, GangPhase, GangReplicatedJob, GangStatus,
};
pub use jobset::DEFAULT_GROUP_NAME;
pub use spec::{
    Coordinator, DependsOn, DependsOnStatus, ExecutionPolicy, ExecutionPolicyOrder, FailurePolicy,
    FailurePolicyAction, FailurePolicyRule, JobSet, JobSetSpec, Network, Operator, ReplicatedJob,
    ReplicatedJobsStatus, RestartStrategy, StartupPolicy, StartupPolicyOrder, SuccessPolicy,
};
pub use status::{
    CompletedJobs, InPlaceKind, InPlacePhase, InPlaceRestartStatus, JobSetStatus, ReplicatedJobStatus,
    RestartCause, RestartLevel, RestartedWorker, TerminalState,
};
pub use target::{NoTarget, Target, WorkerRestartRequest};
pub use volumes::{RetentionPolicy, VolumeClaimPolicy, VolumeClaimTemplate, VolumeRetentionPolicy};

/// API group of the JobSet CRD.
pub const GROUP: &str = "jobset.x-k8s.io";
/// The served and stored version of the JobSet CRD.
pub const VERSION: &str = "v1alpha2";
/// Kind of the JobSet CRD.
pub const KIND: &str = "JobSet";
/// Plural resource name of the JobSet CRD.
pub const PLURAL: &str = "jobsets";
/// `spec.managedBy` of JobSets that this controller reconciles. An absent field means the same.
pub const CONTROLLER_NAME: &str = "jobset.sigs.k8s.io/jobset-controller";
