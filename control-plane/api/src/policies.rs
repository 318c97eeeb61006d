//! Policies of a JobSet: when it has succeeded, what happens when a Job fails, and in which order
//! its replicatedJobs start and run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::{string_enum, without_default};

/// When the set has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuccessPolicy {
    /// Whether `All` or `Any` of the selected Jobs must succeed.
    pub operator: Operator,

    /// The replicatedJobs whose Jobs count; all of them when the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub target_replicated_jobs: Vec<String>,
}

string_enum! {
    /// How many of the selected Jobs a success policy asks for.
    pub enum Operator {
        /// All of them.
        All,
        /// At least one.
        Any,
    }
}

/// What happens when a Job fails.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailurePolicy {
    /// How often the set may be restarted before it has failed. Restarts in place count too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<i32>,

    /// How the set is restarted: `Recreate` makes each Job anew as soon as its predecessor is gone,
    /// `BlockingRecreate` waits until all are gone, `InPlaceRestart` restarts the workers inside
    /// their running pods and recreates only what cannot be restarted so.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Recreate"))]
    pub restart_strategy: Option<RestartStrategy>,

    /// Rules for particular failures; the first that matches decides. When none matches the set is
    /// restarted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FailurePolicyRule>,
}

string_enum! {
    /// How a set is restarted.
    pub enum RestartStrategy {
        /// Each Job is made anew as soon as its predecessor is gone.
        Recreate,
        /// Jobs are made anew when all of their predecessors are gone.
        BlockingRecreate,
        /// Workers restart inside their running pods (KEP-467).
        InPlaceRestart,
    }
}

/// What happens when a Job fails in a particular way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("required" = ["action", "name"]))]
pub struct FailurePolicyRule {
    /// Name of the rule, unique in the list: `^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$`. The
    /// webhook fills in `failurePolicyRule<index>`.
    #[serde(default)]
    #[schemars(transform = without_default)]
    pub name: String,

    /// What to do: `FailJobSet`, `RestartJobSet`, `RestartJobSetAndIgnoreMaxRestarts`, `RestartJob`
    /// or `RestartJobAndIgnoreMaxRestarts`.
    pub action: FailurePolicyAction,

    /// Reasons of the Job's Failed condition that the rule matches; any when the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_job_failure_reasons: Vec<String>,

    /// Regular expressions (RE2) of which one must match the message of the Job's Failed condition;
    /// any message matches an empty list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_job_failure_message_patterns: Vec<String>,

    /// The replicatedJobs whose Jobs the rule is about; all of them when the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub target_replicated_jobs: Vec<String>,
}

string_enum! {
    /// What a failure policy rule does.
    pub enum FailurePolicyAction {
        /// The set has failed.
        FailJobSet,
        /// Restart the set, unless `maxRestarts` is used up.
        RestartJobSet,
        /// Restart the set without counting it.
        RestartJobSetAndIgnoreMaxRestarts,
        /// Recreate the failed Job alone, unless `maxRestarts` is used up.
        RestartJob,
        /// Recreate the failed Job alone without counting it.
        RestartJobAndIgnoreMaxRestarts,
    }
}

/// Order in which the replicatedJobs start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartupPolicy {
    /// `AnyOrder` starts all replicatedJobs at once; `InOrder` starts each one, as listed, when all
    /// Jobs of the one before are ready.
    pub startup_policy_order: StartupPolicyOrder,
}

string_enum! {
    /// Order in which the replicatedJobs start.
    pub enum StartupPolicyOrder {
        /// All at once.
        AnyOrder,
        /// As listed, each when the one before is ready.
        InOrder,
    }
}

/// Order in which the replicatedJobs run (KEP-672).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionPolicy {
    /// `AnyOrder` runs all replicatedJobs at once; `InOrder` creates each one, as listed, when all
    /// Jobs of the one before have reached `replicatedJobsStatus`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "AnyOrder"))]
    pub execution_policy_order: Option<ExecutionPolicyOrder>,

    /// What all Jobs of a replicatedJob must have reached before the next one is created:
    /// `Succeeded`, `Failed` (their failure is what the next one waits for, and no matter of the
    /// failure policy), `Active` (their pods are there) or `Ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Succeeded"))]
    pub replicated_jobs_status: Option<ReplicatedJobsStatus>,
}

string_enum! {
    /// Order in which the replicatedJobs run.
    pub enum ExecutionPolicyOrder {
        /// All at once.
        AnyOrder,
        /// As listed, each when the one before has reached a status.
        InOrder,
    }
}

string_enum! {
    /// What the Jobs of a replicatedJob can have reached.
    pub enum ReplicatedJobsStatus {
        /// All have succeeded.
        Succeeded,
        /// All have failed.
        Failed,
        /// All have pods that are pending or running, or have had them.
        Active,
        /// All are ready, or have ended.
        Ready,
    }
}
