//! Labels and annotations of Ray's resources and their pods.

/// Label of what belongs to a RayCluster: its name.
pub const CLUSTER: &str = "ray.io/cluster";
/// Label of pods: `head` or `worker`.
pub const NODE_TYPE: &str = "ray.io/node-type";
/// Label of pods: the name of the worker group; `headgroup` for the head.
pub const GROUP: &str = "ray.io/group";
/// Label of pods that are nodes of Ray: `yes`.
pub const IS_RAY_NODE: &str = "ray.io/is-ray-node";
/// Label of pods: `<cluster>-<node type>`.
pub const IDENTIFIER: &str = "ray.io/identifier";

/// On a RayCluster or a pod template, with value `true`: the containers' own commands are left as
/// they are.
pub const OVERWRITE_CONTAINER_COMMAND: &str = "ray.io/overwrite-container-cmd";

/// On the JobSet of a RayCluster, written by the controller: a digest of what it was made from, but
/// for the numbers of workers.
pub const TEMPLATE_DIGEST: &str = "lockstep.dev/ray-template-digest";
/// On the JobSet of a RayCluster, written by the controller: a digest of what else it was made
/// from: the gang, and the annotations that are meant for it.
pub const SETTINGS_DIGEST: &str = "lockstep.dev/ray-settings-digest";
/// On the Job template of a replicatedJob: how far a restart in place of one of its workers
/// reaches.
pub const RESTART_SCOPE: &str = "lockstep.dev/restart-scope";
/// Value of [`RESTART_SCOPE`]: that worker alone.
pub const RESTART_SCOPE_WORKER: &str = "worker";

/// Label of what was made for another of Ray's resources: its name.
pub const ORIGINATED_FROM_NAME: &str = "ray.io/originated-from-cr-name";
/// Label of what was made for another of Ray's resources: its kind.
pub const ORIGINATED_FROM_CRD: &str = "ray.io/originated-from-crd";
/// Label of the RayCluster of a RayJob: how the job is submitted.
pub const SUBMISSION_MODE: &str = "ray.io/job-submission-mode";
/// On a RayCluster, with value `true`: KubeRay has the state of the head kept in Redis. Not
/// supported.
pub const FAULT_TOLERANCE: &str = "ray.io/ft-enabled";
/// On a RayCluster: the name under which KubeRay has that state kept. Not supported.
pub const EXTERNAL_STORAGE: &str = "ray.io/external-storage-namespace";
/// Label of RayJobs of a RayCronJob: its name.
pub const CRON_JOB_NAME: &str = "ray.io/cronjob-name";
/// On RayJobs of a RayCronJob: the time by the schedule (RFC 3339, UTC).
pub const CRON_JOB_TIMESTAMP: &str = "ray.io/cronjob-scheduled-timestamp";
/// On the submitter of a RayJob, written by the controller: id of the attempt that it submits.
pub const JOB_ID: &str = "lockstep.dev/ray-job-id";
/// On a RayJob whose definition drops a part of the status, written by the controller: the whole
/// status, as JSON.
pub const JOB_STATUS: &str = "lockstep.dev/ray-job-status";

/// Value of [`NODE_TYPE`] of the head.
pub const HEAD: &str = "head";
/// Value of [`NODE_TYPE`] of workers.
pub const WORKER: &str = "worker";
/// Value of [`GROUP`] of the head.
pub const HEAD_GROUP: &str = "headgroup";

/// The labels of what was made for a RayJob of this name.
pub fn originated_from_job(name: &str) -> [(String, String); 2] {
    [(ORIGINATED_FROM_NAME, name), (ORIGINATED_FROM_CRD, "RayJob")]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
}
