//! Names of Ray's resources and their pods: labels, annotations and conditions.

/// Label of a RayCluster's objects: its name.
pub const CLUSTER: &str = "ray.io/cluster";
/// Label of pods: `head` or `worker`.
pub const NODE_TYPE: &str = "ray.io/node-type";
/// Label of pods: the name of the worker group; `headgroup` for the head.
pub const GROUP: &str = "ray.io/group";
/// Label of pods that are nodes of Ray: `yes`.
pub const IS_RAY_NODE: &str = "ray.io/is-ray-node";
/// Label of pods: `<cluster>-<node type>`.
pub const IDENTIFIER: &str = "ray.io/identifier";

/// On a RayCluster or a pod template, with value `true`: the containers keep their own commands.
pub const OVERWRITE_CONTAINER_COMMAND: &str = "ray.io/overwrite-container-cmd";

/// On the JobSet of a RayCluster, written by the controller: a digest of its source, without the
/// numbers of workers.
pub const TEMPLATE_DIGEST: &str = "lockstep.dev/ray-template-digest";
/// On the JobSet of a RayCluster, written by the controller: a digest of its other settings: the
/// gang, and the annotations for it.
pub const SETTINGS_DIGEST: &str = "lockstep.dev/ray-settings-digest";
/// Value of [`RESTART_SCOPE`](crate::annotations::RESTART_SCOPE): only that worker.
pub const RESTART_SCOPE_WORKER: &str = "worker";

/// Label of objects that were created for another Ray resource: its name.
pub const ORIGINATED_FROM_NAME: &str = "ray.io/originated-from-cr-name";
/// Label of objects that were created for another Ray resource: its kind.
pub const ORIGINATED_FROM_CRD: &str = "ray.io/originated-from-crd";
/// Label of the RayCluster of a RayJob: how the job is submitted.
pub const SUBMISSION_MODE: &str = "ray.io/job-submission-mode";
/// On a RayCluster, with value `true`: KubeRay keeps the head's state in Redis. Not supported.
pub const FAULT_TOLERANCE: &str = "ray.io/ft-enabled";
/// On a RayCluster: the name under which KubeRay keeps that state. Not supported.
pub const EXTERNAL_STORAGE: &str = "ray.io/external-storage-namespace";
/// Label of a RayCronJob's RayJobs: its name.
pub const CRON_JOB_NAME: &str = "ray.io/cronjob-name";
/// On RayJobs of a RayCronJob: the scheduled time (RFC 3339, UTC).
pub const CRON_JOB_TIMESTAMP: &str = "ray.io/cronjob-scheduled-timestamp";
/// On the submitter of a RayJob, written by the controller: the id of the attempt that it submits.
pub const JOB_ID: &str = "lockstep.dev/ray-job-id";
/// On a RayJob whose CRD prunes a part of the status, written by the controller: the whole status,
/// as JSON.
pub const JOB_STATUS: &str = "lockstep.dev/ray-job-status";

/// Value of [`NODE_TYPE`] of the head.
pub const HEAD: &str = "head";
/// Value of [`NODE_TYPE`] of workers.
pub const WORKER: &str = "worker";
/// Value of [`GROUP`] of the head.
pub const HEAD_GROUP: &str = "headgroup";

/// The labels of objects that were created for a RayJob.
pub fn originated_from_job(name: &str) -> [(String, String); 2] {
    [(ORIGINATED_FROM_NAME, name), (ORIGINATED_FROM_CRD, "RayJob")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
}

/// Condition types of Ray's resources, and their reasons.
pub mod conditions {
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
}
