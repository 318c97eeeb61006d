//! Policies of a JobSet: when it has succeeded, what happens when a Job fails, and in which order
//! its replicatedJobs start and run.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::shared::{string_enum, without_default};

/// When the set has succeeded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SuccessPolicy {
    /// `All` if all of the selected Jobs must succeed, `Any` if one is enough.
    pub operator: Operator,

    /// The replicatedJobs whose Jobs count; all of them if the list is empty.
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
    /// How often the set may be restarted before it fails. Restarts in place count too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_restarts: Option<i32>,

    /// How the set is restarted: `Recreate` recreates each Job as soon as its predecessor is gone,
    /// `BlockingRecreate` waits until all are gone, `InPlaceRestart` restarts the workers inside
    /// their running pods and recreates only what cannot be restarted in place.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Recreate"))]
    pub restart_strategy: Option<RestartStrategy>,

    /// Rules for particular failures; the first that matches decides. If none matches, the set is
    /// restarted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rules: Vec<FailurePolicyRule>,
}

string_enum! {
    /// How a set is restarted.
    pub enum RestartStrategy {
        /// Each Job is recreated as soon as its predecessor is gone.
        Recreate,
        /// Jobs are recreated when all of their predecessors are gone.
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

    /// Reasons of the Job's Failed condition that the rule matches; any if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_job_failure_reasons: Vec<String>,

    /// Regular expressions (RE2). One of them must match the message of the Job's Failed condition;
    /// an empty list matches any message.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on_job_failure_message_patterns: Vec<String>,

    /// The replicatedJobs whose Jobs the rule applies to; all of them if the list is empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic"))]
    pub target_replicated_jobs: Vec<String>,
}

string_enum! {
    /// What a failure policy rule does.
    pub enum FailurePolicyAction {
        /// Fail the set.
        FailJobSet,
        /// Restart the set, unless `maxRestarts` is used up.
        RestartJobSet,
        /// Restart the set without counting it.
        RestartJobSetAndIgnoreMaxRestarts,
        /// Recreate only the failed Job, unless `maxRestarts` is used up.
        RestartJob,
        /// Recreate only the failed Job, without counting it.
        RestartJobAndIgnoreMaxRestarts,
    }
}

/// Order in which the replicatedJobs start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StartupPolicy {
    /// `AnyOrder` starts all replicatedJobs at once; `InOrder` starts each one, as listed, when all
    /// Jobs of the previous one are ready.
    pub startup_policy_order: StartupPolicyOrder,
}

string_enum! {
    /// Order in which the replicatedJobs start.
    pub enum StartupPolicyOrder {
        /// All at once.
        AnyOrder,
        /// As listed, each when the previous one is ready.
        InOrder,
    }
}

/// Order in which the replicatedJobs run (KEP-672).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecutionPolicy {
    /// `AnyOrder` runs all replicatedJobs at once; `InOrder` creates each one, as listed, when all
    /// Jobs of the previous one have reached `replicatedJobsStatus`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "AnyOrder"))]
    pub execution_policy_order: Option<ExecutionPolicyOrder>,

    /// What all Jobs of a replicatedJob must have reached before the next one is created:
    /// `Succeeded`, `Failed` (the next one waits for their failure, and the failure policy ignores
    /// it), `Active` (their pods exist) or `Ready`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "Succeeded"))]
    pub replicated_jobs_status: Option<ReplicatedJobsStatus>,
}

string_enum! {
    /// Order in which the replicatedJobs run.
    pub enum ExecutionPolicyOrder {
        /// All at once.
        AnyOrder,
        /// As listed, each when the previous one has reached a status.
        InOrder,
    }
}

string_enum! {
    /// What the Jobs of a replicatedJob can reach.
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
