//! Kubernetes API types of Lockstep: the JobSet CRD `jobset.x-k8s.io/v1alpha2`, and its names.
//!
//! Promises:
//! - The types accept every object that the upstream CRD's schema accepts, defaulted or not.
//!   Writing back what was read loses nothing that upstream's schema knows (a quantity given as a
//!   number becomes the same quantity as text). Enumerations preserve unknown values.
//! - The schema is a superset of upstream's: [`crd::definition`] is compared with upstream's file
//!   by a test, and every addition is listed there.
//! - No I/O, no clock, no logging: constants, data and pure functions.
//!
//! Write objects whole (`PUT`) or by server-side apply: absent fields are not serialized, so a JSON
//! merge patch made from these types clears nothing.

pub mod annotations;
pub mod conditions;
pub mod crd;
pub mod duration;
mod gang;
mod jobset;
pub mod labels;
pub mod naming;
mod policies;
pub mod ray;
mod shared;
mod spec;
mod status;
mod target;
mod volumes;

pub use conditions::events;
pub use gang::{
    DEFAULT_SCHEDULE_TIMEOUT_SECONDS, Gang, GangBackend, GangPhase, GangReplicatedJob, GangStatus,
};
pub use jobset::DEFAULT_GROUP_NAME;
pub use policies::{
    ExecutionPolicy, ExecutionPolicyOrder, FailurePolicy, FailurePolicyAction, FailurePolicyRule, Operator,
    ReplicatedJobsStatus, RestartStrategy, StartupPolicy, StartupPolicyOrder, SuccessPolicy,
};
pub use spec::{Coordinator, DependsOn, DependsOnStatus, JobSet, JobSetSpec, Network, ReplicatedJob};
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

/// At most the first `most` bytes of a user's text, with `...` appended if it was cut. An
/// annotation may have 256 KiB, too much for an error message.
#[must_use]
pub fn beginning(text: &str, most: usize) -> String {
    match text.floor_char_boundary(most) {
        end if end < text.len() => format!("{}...", &text[..end]),
        _ => text.to_owned(),
    }
}
