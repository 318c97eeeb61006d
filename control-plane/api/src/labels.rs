//! Keys that mark the Jobs, pods and nodes of a JobSet.
//!
//! Unless stated otherwise each is both a label and an annotation, on Jobs and on pods: the label
//! for selectors, the annotation for the downward API, which has no limit on values.

pub use lockstep_protocol::pods::{BATCH_JOB_COMPLETION_INDEX, BATCH_JOB_NAME, JOBSET_UID};

/// Name of the JobSet.
pub const JOBSET_NAME: &str = "jobset.sigs.k8s.io/jobset-name";
/// Name of the replicatedJob.
pub const REPLICATED_JOB_NAME: &str = "jobset.sigs.k8s.io/replicatedjob-name";
/// How many Jobs the replicatedJob has.
pub const REPLICATED_JOB_REPLICAS: &str = "jobset.sigs.k8s.io/replicatedjob-replicas";
/// How many Jobs the JobSet has.
pub const GLOBAL_REPLICAS: &str = "jobset.sigs.k8s.io/global-replicas";
/// Index of the Job in its replicatedJob.
pub const JOB_INDEX: &str = "jobset.sigs.k8s.io/job-index";
/// Index of the Job in the JobSet, in the order of the spec.
pub const JOB_GLOBAL_INDEX: &str = "jobset.sigs.k8s.io/job-global-index";
/// Hash of the Job's namespace and name, see [`crate::naming::job_key`].
pub const JOB_KEY: &str = "jobset.sigs.k8s.io/job-key";
/// Name of the group that the replicatedJob belongs to.
pub const GROUP_NAME: &str = "jobset.sigs.k8s.io/group-name";
/// How many Jobs the group has.
pub const GROUP_REPLICAS: &str = "jobset.sigs.k8s.io/group-replicas";
/// Index of the Job in its group.
pub const JOB_GROUP_INDEX: &str = "jobset.sigs.k8s.io/job-group-index";
/// Value of `status.restarts` that the Job was created for.
pub const RESTART_ATTEMPT: &str = "jobset.sigs.k8s.io/restart-attempt";
/// How often the Job was recreated on its own (feature gate RestartJob).
pub const JOB_RESTART_ATTEMPT: &str = "jobset.sigs.k8s.io/job-restart-attempt";
/// Stable host name of the coordinator pod, if the JobSet names one.
pub const COORDINATOR: &str = "jobset.sigs.k8s.io/coordinator";
/// Label of pods only: their priority. Exclusive placement applies within one priority.
pub const PRIORITY: &str = "jobset.sigs.k8s.io/priority";
/// Label of nodes, and node selector of pods placed by the node selector strategy:
/// `<namespace>_<job>`.
pub const NAMESPACED_JOB: &str = "alpha.jobset.sigs.k8s.io/namespaced-job";
/// Taint of nodes that the node selector strategy assigned to one Job, and toleration of its pods.
pub const NO_SCHEDULE_TAINT: &str = "alpha.jobset.sigs.k8s.io/no-schedule";

/// Label that Kubernetes puts on the pods of a Job: its UID.
pub const BATCH_CONTROLLER_UID: &str = "batch.kubernetes.io/controller-uid";
/// Finalizer that the Job controller puts on its pods until it has counted them.
pub const BATCH_JOB_TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Scheduling gate of pods that wait for their gang.
pub const GANG_GATE: &str = "lockstep.dev/gang";
