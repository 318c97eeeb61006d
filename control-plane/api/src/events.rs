//! Reasons and messages of events that do not stand for a condition.

use crate::FailurePolicyAction;

/// `action` of every event (events.k8s.io/v1).
pub const ACTION: &str = "Reconciling";

/// A Job could not be created; the message is the error.
pub const JOB_CREATION_FAILED: &str = "JobCreationFailed";
/// The headless Service could not be created; the message is the error.
pub const HEADLESS_SERVICE_CREATION_FAILED: &str = "HeadlessServiceCreationFailed";
/// A persistent volume claim could not be created; the message is the error.
pub const PVC_CREATION_FAILED: &str = "PVCCreationFailed";

/// Reason of the DisruptionTarget condition of a pod that stands outside its leader's topology
/// domain.
pub const EXCLUSIVE_PLACEMENT_VIOLATION: &str = "ExclusivePlacementViolation";
/// Message of [`EXCLUSIVE_PLACEMENT_VIOLATION`].
pub const EXCLUSIVE_PLACEMENT_VIOLATION_MESSAGE: &str = "Pod violated JobSet exclusive placement policy";

/// Reason of the event that says which action the failure policy took.
pub fn failure_policy_action_reason(action: &FailurePolicyAction) -> String {
    format!("{action}FailurePolicyAction")
}

/// Start of the message of the event that says which action the failure policy took.
pub fn failure_policy_action_message(action: &FailurePolicyAction) -> String {
    format!("applying {action} failure policy action")
}

/// Annotation of the event of a completed restart: when each phase was reached, as JSON
/// (nanoseconds since the Unix epoch).
pub const TIMELINE: &str = "lockstep.dev/timeline";
