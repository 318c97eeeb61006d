//! Condition types of Ray's resources, and their reasons.

/// The head's pod is ready.
pub const HEAD_POD_READY: &str = "HeadPodReady";
/// All pods of the cluster have been ready at the same time once.
pub const PROVISIONED: &str = "RayClusterProvisioned";
/// Pods cannot be made, or have failed for good.
pub const REPLICA_FAILURE: &str = "ReplicaFailure";
/// The pods are being deleted, as `spec.suspend` asks.
pub const SUSPENDING: &str = "RayClusterSuspending";
/// There are no pods, as `spec.suspend` asks.
pub const SUSPENDED: &str = "RayClusterSuspended";
/// The manifest states fields that are not supported; the message names them.
pub const UNSUPPORTED_FIELDS: &str = "UnsupportedFields";
/// The spec was changed in a way that waits for a suspension.
pub const CHANGES_PENDING: &str = "ChangesPending";
/// The spec cannot be, and no jobs are started; the message names the fields.
pub const VALIDATION_FAILED: &str = "ValidationFailed";

/// Reasons of conditions.
pub mod reasons {
    /// The head's pod runs and is ready.
    pub const HEAD_POD_READY: &str = "HeadPodRunningAndReady";
    /// There is no head pod.
    pub const HEAD_POD_NOT_FOUND: &str = "HeadPodNotFound";
    /// Nothing is known of it.
    pub const UNKNOWN: &str = "Unknown";
    /// Not all pods have been ready yet.
    pub const PROVISIONING: &str = "RayClusterPodsProvisioning";
    /// All pods were ready for the first time.
    pub const ALL_READY: &str = "AllPodRunningAndReadyFirstTime";
    /// The head's pod cannot be created.
    pub const FAILED_CREATE_HEAD: &str = "FailedCreateHeadPod";
    /// Pods of a group of workers cannot be created.
    pub const FAILED_CREATE_WORKER: &str = "FailedCreateWorkerPod";
    /// The spec cannot be.
    pub const VALIDATION_FAILED: &str = "ValidationFailed";
    /// A restart waits for an operator.
    pub const RESTART_BLOCKED: &str = "RestartBlocked";
    /// The cluster's JobSet has ended.
    pub const JOBSET_ENDED: &str = "JobSetEnded";
    /// The fields are ignored.
    pub const IGNORED: &str = "FieldsIgnored";
    /// All fields are supported.
    pub const ALL_SUPPORTED: &str = "AllFieldsSupported";
    /// A suspension puts the change into force.
    pub const NEEDS_SUSPENSION: &str = "NeedsSuspension";
    /// What runs is what is asked for.
    pub const UP_TO_DATE: &str = "UpToDate";
}
