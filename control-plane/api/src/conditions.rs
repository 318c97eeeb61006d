//! Types, reasons and messages of a JobSet's conditions and events. Events about a condition carry
//! its reason.

/// Type: the success policy is met. Terminal.
pub const COMPLETED: &str = "Completed";
/// Type: the failure policy gave up. Terminal.
pub const FAILED: &str = "Failed";
/// Type: the Jobs are suspended.
pub const SUSPENDED: &str = "Suspended";
/// Type: the Jobs are being recreated.
pub const RESTARTING_JOBSET: &str = "RestartingJobSet";
/// Type: startupPolicy InOrder has not finished.
pub const STARTUP_POLICY_IN_PROGRESS: &str = "StartupPolicyInProgress";
/// Type: startupPolicy InOrder has started everything.
pub const STARTUP_POLICY_COMPLETED: &str = "StartupPolicyCompleted";
/// Type: a restart waits for something that only an operator can fix. An addition to upstream's
/// types.
pub const RESTART_BLOCKED: &str = "RestartBlocked";
/// Type: as many pods run as the set's gangs need. An addition to upstream's types.
pub const MIN_AVAILABLE: &str = "MinAvailable";

/// Reasons of conditions.
pub mod reasons {
    /// Completed.
    pub const ALL_JOBS_COMPLETED: &str = "AllJobsCompleted";
    /// Failed: a Job failed and there is no failure policy.
    pub const FAILED_JOBS: &str = "FailedJobs";
    /// Failed: a further restart would exceed `maxRestarts`.
    pub const REACHED_MAX_RESTARTS: &str = "ReachedMaxRestarts";
    /// Failed: a rule with action FailJobSet matched.
    pub const FAIL_JOBSET_ACTION: &str = "FailJobSetFailurePolicyAction";
    /// Failed: `activeDeadlineSeconds` are over.
    pub const DEADLINE_EXCEEDED: &str = "DeadlineExceeded";
    /// Suspended is True.
    pub const SUSPENDED_JOBS: &str = "SuspendedJobs";
    /// Suspended is False.
    pub const RESUME_JOBS: &str = "ResumeJobs";
    /// RestartingJobSet is True: no rule matched.
    pub const DEFAULT_FAILURE_POLICY: &str = "DefaultFailurePolicy";
    /// RestartingJobSet is True: start of the reason, followed by the rule's name.
    pub const FAILURE_POLICY_PREFIX: &str = "FailurePolicy_";
    /// RestartingJobSet is False: all Jobs are ready.
    pub const JOBS_READY: &str = "JobsReady";
    /// RestartingJobSet is False: the JobSet failed.
    pub const JOBSET_FAILED: &str = "JobSetFailed";
    /// RestartingJobSet is False: the JobSet completed.
    pub const JOBSET_COMPLETED: &str = "JobSetCompleted";
    /// RestartingJobSet is False: the JobSet was suspended.
    pub const JOBSET_SUSPENDED: &str = "JobSetSuspended";
    /// StartupPolicyInProgress.
    pub const IN_ORDER_STARTUP_POLICY_IN_PROGRESS: &str = "InOrderStartupPolicyInProgress";
    /// StartupPolicyCompleted.
    pub const IN_ORDER_STARTUP_POLICY_COMPLETED: &str = "InOrderStartupPolicyCompleted";
    /// RestartBlocked is False.
    pub const RESTART_UNBLOCKED: &str = "Unblocked";
    /// MinAvailable is False: the minimum does not run yet.
    pub const GANG_WAITING: &str = "Waiting";
    /// MinAvailable is True.
    pub const GANG_SCHEDULED: &str = "Scheduled";
    /// MinAvailable is False: the minimum was not bound in time.
    pub const GANG_TIMEOUT: &str = "Timeout";
}

/// Messages of conditions. Users and tools match on them.
pub mod messages {
    /// Of Completed.
    pub const ALL_JOBS_COMPLETED: &str = "jobset completed successfully";
    /// Of Failed, reason FailedJobs.
    pub const FAILED_JOBS: &str = "jobset failed due to one or more job failures";
    /// Of Failed, reason ReachedMaxRestarts.
    pub const REACHED_MAX_RESTARTS: &str = "jobset failed due to reaching max number of restarts";
    /// Of Suspended, True.
    pub const SUSPENDED_JOBS: &str = "jobset is suspended";
    /// Of Suspended, False.
    pub const RESUME_JOBS: &str = "jobset is resumed";
    /// Of RestartingJobSet, reason JobsReady.
    pub const JOBS_READY: &str = "all jobs are ready";
    /// Of RestartingJobSet, reason JobSetFailed.
    pub const JOBSET_FAILED: &str = "jobset failed";
    /// Of StartupPolicyInProgress.
    pub const IN_ORDER_STARTUP_POLICY_IN_PROGRESS: &str = "in order startup policy is in progress";
    /// Of RestartBlocked, False.
    pub const RESTART_UNBLOCKED: &str = "nothing is waited for";
    /// Of StartupPolicyCompleted.
    pub const IN_ORDER_STARTUP_POLICY_COMPLETED: &str = "in order startup policy has completed";
}

/// Reasons and messages of events that do not stand for a condition.
pub mod events {
    use crate::FailurePolicyAction;

    /// `action` of every event (events.k8s.io/v1).
    pub const ACTION: &str = "Reconciling";

    /// `reportingController` of events about restarts in place.
    pub const RESTART_CONTROLLER: &str = "lockstep.dev/control-plane";
    /// `reportingController` of all other events about JobSets, as upstream has it.
    pub const JOBSET_CONTROLLER: &str = "jobset";

    /// The workers were restarted in place.
    pub const RESTARTED_IN_PLACE: &str = "RestartedInPlace";
    /// All Jobs were recreated, and their workers run.
    pub const RECREATED: &str = "Recreated";
    /// All Jobs are being recreated.
    pub const RECREATING_JOBS: &str = "RecreatingJobs";
    /// A worker's pod is replaced because restarts of its process do not help.
    pub const WORKER_ESCALATED: &str = "WorkerEscalated";
    /// A lost pod was replaced.
    pub const REPLACED_POD: &str = "ReplacedPod";
    /// A lost pod could not be replaced; the message has the error.
    pub const POD_NOT_REPLACED: &str = "PodNotReplaced";
    /// Reasons of all events about restarts.
    pub const OF_RESTARTS: [&str; 8] = [
        RESTARTED_IN_PLACE,
        RECREATED,
        RECREATING_JOBS,
        super::RESTART_BLOCKED,
        WORKER_ESCALATED,
        super::reasons::REACHED_MAX_RESTARTS,
        REPLACED_POD,
        POD_NOT_REPLACED,
    ];

    /// A Job could not be created; the message is the error.
    pub const JOB_CREATION_FAILED: &str = "JobCreationFailed";
    /// The headless Service could not be created; the message is the error.
    pub const HEADLESS_SERVICE_CREATION_FAILED: &str = "HeadlessServiceCreationFailed";
    /// The changed resources of a suspended JobSet's containers could not be written to a Job; the
    /// message has the error.
    pub const FAILED_RESOURCE_PROPAGATION: &str = "FailedResourcePropagation";
    /// A persistent volume claim could not be created; the message is the error.
    pub const PVC_CREATION_FAILED: &str = "PVCCreationFailed";

    /// Reason of the DisruptionTarget condition of a pod outside its leader's topology domain.
    pub const EXCLUSIVE_PLACEMENT_VIOLATION: &str = "ExclusivePlacementViolation";
    /// Message of [`EXCLUSIVE_PLACEMENT_VIOLATION`].
    pub const EXCLUSIVE_PLACEMENT_VIOLATION_MESSAGE: &str = "Pod violated JobSet exclusive placement policy";

    /// Reason of the event about the action that the failure policy took.
    pub fn failure_policy_action_reason(action: &FailurePolicyAction) -> String {
        format!("{action}FailurePolicyAction")
    }

    /// Start of the message of the event about the action that the failure policy took.
    pub fn failure_policy_action_message(action: &FailurePolicyAction) -> String {
        format!("applying {action} failure policy action")
    }

    /// Annotation of the event about a completed restart: when each phase was reached, as JSON
    /// (nanoseconds since the Unix epoch).
    pub const TIMELINE: &str = "lockstep.dev/timeline";
}
