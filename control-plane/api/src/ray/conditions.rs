//! Condition types of Ray's resources, and their reasons.

/// The head's pod is ready.
pub const HEAD_POD_READY: &str = "HeadPodReady";
/// All pods of the cluster were ready at the same time once.
pub const PROVISIONED: &str = "RayClusterProvisioned";
/// Pods cannot be created, or have failed for good.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";
/// The pods are being deleted because of `spec.suspend`.
pub const SUSPENDING: &str = "RayClusterSuspending";
/// There are no pods because of `spec.suspend`.
pub const SUSPENDED: &str = "RayClusterSuspended";
/// The manifest sets unsupported fields; the message names them.
pub const UNSUPPORTED_FIELDS: &str = "UnsupportedFields";
/// The spec has a change that takes effect only after a suspension.
pub const CHANGES_PENDING: &str = "ChangesPending";
/// The spec is invalid and no jobs are started; the message names the fields.
pub const VALIDATION_FAILED: &str = "ValidationFailed";

/// Reasons of conditions.
pub mod reasons {
    /// The head's pod runs and is ready.
    pub const HEAD_POD_READY: &str = "HeadPodRunningAndReady";
    /// There is no head pod.
    pub const HEAD_POD_NOT_FOUND: &str = "HeadPodNotFound";
    /// The state is unknown.
    pub const UNKNOWN: &str = "Unknown";
    /// Not all pods were ready yet.
    pub const PROVISIONING: &str = "RayClusterPodsProvisioning";
    /// All pods were ready for the first time.
    pub const ALL_READY: &str = "AllPodRunningAndReadyFirstTime";
    /// The head's pod cannot be created.
    pub const FAILED_CREATE_HEAD: &str = "FailedCreateHeadPod";
    /// Pods of a group of workers cannot be created.
    pub const FAILED_CREATE_WORKER: &str = "FailedCreateWorkerPod";
    /// The spec is invalid.
    pub const VALIDATION_FAILED: &str = "ValidationFailed";
    /// A restart waits for an operator.
    pub const RESTART_BLOCKED: &str = "RestartBlocked";
    /// The cluster's JobSet has ended.
    pub const JOBSET_ENDED: &str = "JobSetEnded";
    /// The fields are ignored.
    pub const IGNORED: &str = "FieldsIgnored";
    /// All fields are supported.
    pub const ALL_SUPPORTED: &str = "AllFieldsSupported";
    /// The change takes effect after a suspension.
    pub const NEEDS_SUSPENSION: &str = "NeedsSuspension";
    /// The running pods match the spec.
    pub const UP_TO_DATE: &str = "UpToDate";
}
