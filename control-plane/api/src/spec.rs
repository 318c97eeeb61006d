//! The JobSet resource and its `spec`.
//!
//! `kubectl explain` prints the doc comments of fields. Fields that upstream marks optional are an
//! `Option` or an empty list here, because objects can arrive undefaulted; the accessors of
//! [`JobSet`] apply the defaults.

use k8s_openapi::api::batch::v1::JobTemplateSpec;
use kube::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::gang::Gang;
use crate::policies::{ExecutionPolicy, FailurePolicy, StartupPolicy, SuccessPolicy};
use crate::shared::string_enum;
use crate::status::JobSetStatus;
use crate::volumes::VolumeClaimPolicy;

/// CEL rule of fields that never change once they are set.
fn immutable() -> Value {
    json!([{ "message": "Value is immutable", "rule": "self == oldSelf" }])
}

// `serde(default)` on the root: upstream's schema accepts a JobSet without spec, and it must not
// stop the watch of all others. The derive takes no plain serde attribute there.
/// Desired state of a JobSet.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    group = "jobset.x-k8s.io",
    version = "v1alpha2",
    kind = "JobSet",
    plural = "jobsets",
    singular = "jobset",
    namespaced,
    status = "JobSetStatus",
    derive = "PartialEq",
    derive = "Default",
    attr = "cfg_attr(true, serde(default))",
    doc = "A set of Jobs that run, restart, succeed and fail as one.",
    printcolumn = r#"{"name":"TerminalState","jsonPath":".status.terminalState","type":"string","description":"Final state of JobSet"}"#,
    printcolumn = r#"{"name":"Restarts","jsonPath":".status.restarts","type":"string","description":"Number of restarts"}"#,
    printcolumn = r#"{"name":"Completed","jsonPath":".status.conditions[?(@.type==\"Completed\")].status","type":"string"}"#,
    printcolumn = r#"{"name":"Suspended","jsonPath":".spec.suspend","type":"string","description":"JobSet suspended"}"#,
    printcolumn = r#"{"name":"Age","jsonPath":".metadata.creationTimestamp","type":"date","description":"Time this JobSet was created"}"#
)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    {
        "message": "StartupPolicy and DependsOn APIs are mutually exclusive",
        "rule": "!(has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder' && self.replicatedJobs.exists(x, has(x.dependsOn)))",
    },
    {
        "message": "ExecutionPolicy and DependsOn APIs are mutually exclusive",
        "rule": "!(has(self.executionPolicy) && self.executionPolicy.executionPolicyOrder == 'InOrder' && self.replicatedJobs.exists(x, has(x.dependsOn)))",
    },
    {
        "message": "ExecutionPolicy and StartupPolicy APIs are mutually exclusive",
        "rule": "!(has(self.executionPolicy) && self.executionPolicy.executionPolicyOrder == 'InOrder' && has(self.startupPolicy) && self.startupPolicy.startupPolicyOrder == 'InOrder')",
    },
    {
        "fieldPath": ".executionPolicy",
        "message": "Value is immutable",
        "rule": "has(self.executionPolicy) == has(oldSelf.executionPolicy)",
    },
    // Also enforced without webhooks: replacement pods of a gang that was removed would stay behind
    // their gate.
    {
        "fieldPath": ".gang",
        "message": "field is immutable unless the JobSet is suspended",
        "rule": "has(self.suspend) && self.suspend || has(oldSelf.suspend) && oldSelf.suspend || has(self.gang) == has(oldSelf.gang) && (!has(self.gang) || self.gang == oldSelf.gang)",
    },
]))]
pub struct JobSetSpec {
    /// The groups of identical Jobs that make up the set.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub replicated_jobs: Vec<ReplicatedJob>,

    /// How the pods of the set find each other.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = immutable()))]
    pub network: Option<Network>,

    /// When the set has succeeded. By default: when all its Jobs are complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = immutable()))]
    pub success_policy: Option<SuccessPolicy>,

    /// What happens when a Job fails. Without it the first failed Job fails the set.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = immutable()))]
    pub failure_policy: Option<FailurePolicy>,

    /// Order in which the replicatedJobs start. Deprecated in favour of
    /// `replicatedJobs[].dependsOn`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = immutable()))]
    pub startup_policy: Option<StartupPolicy>,

    /// Order in which the replicatedJobs run (KEP-672). Excludes dependsOn and startupPolicy
    /// InOrder.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-kubernetes-validations" = immutable()))]
    pub execution_policy: Option<ExecutionPolicy>,

    /// Stops all Jobs of the set while true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suspend: Option<bool>,

    /// The pod that coordinates the others. Its stable host name is put on every Job and pod of the
    /// set, in the label and annotation `jobset.sigs.k8s.io/coordinator`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub coordinator: Option<Coordinator>,

    /// The controller that manages this JobSet: a domain-prefixed path of at most 63 characters
    /// (such as `acme.io/foo`), immutable. This controller manages JobSets without a value and
    /// those with `jobset.sigs.k8s.io/jobset-controller`. Others it deletes when they have finished
    /// and their TTL has expired, and leaves alone otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub managed_by: Option<String>,

    /// Seconds after which a finished JobSet is deleted with all its objects; 0 means at once.
    /// Without it a finished JobSet stays.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ttl_seconds_after_finished: Option<i32>,

    /// Seconds for which the set may be active before it fails with reason `DeadlineExceeded`
    /// (KEP-1186). They count from `status.startTime`: a suspension and each restart of all workers
    /// start them again. Needs the feature gate `JobSetActiveDeadlineSeconds`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub active_deadline_seconds: Option<i64>,

    /// Persistent volume claims that are created for the set and shared by its pods.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 50),
        extend("x-kubernetes-list-type" = "atomic", "x-kubernetes-validations" = immutable())
    )]
    pub volume_claim_policies: Vec<VolumeClaimPolicy>,

    /// The minimum of pods that the set starts with. Can be changed while the set is suspended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gang: Option<Gang>,
}

/// A number of Jobs created from one template.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReplicatedJob {
    /// Name of the entry, unique in the set. Its Jobs are called `<jobset>-<name>-<index>`.
    pub name: String,

    /// Group that the entry belongs to. Jobs are numbered within their group, and labels carry the
    /// size of the group.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = "default"))]
    pub group_name: Option<String>,

    /// The Job to create.
    pub template: JobTemplateSpec,

    /// How many Jobs to create.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0), extend("default" = 1))]
    pub replicas: Option<i32>,

    /// Earlier entries of the list that must be ready or complete before the Jobs of this one are
    /// created. The first entry cannot depend on another. Excludes startupPolicy InOrder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 5),
        extend(
            "x-kubernetes-list-type" = "map",
            "x-kubernetes-list-map-keys" = ["name"],
            "x-kubernetes-validations" = immutable()
        )
    )]
    pub depends_on: Vec<DependsOn>,
}

/// One dependency on another replicatedJob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct DependsOn {
    /// Name of the replicatedJob to wait for.
    pub name: String,

    /// What to wait for: `Ready` or `Complete`.
    pub status: DependsOnStatus,
}

string_enum! {
    /// What a replicatedJob waits for in another one.
    pub enum DependsOnStatus {
        /// Ready, succeeded and failed Jobs together make up all of its replicas.
        Ready,
        /// All of its Jobs have succeeded.
        Complete,
    }
}

/// How the pods of the set find each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Network {
    /// Gives every pod the host name `<jobset>-<replicatedJob>-<job index>-<pod
    /// index>.<subdomain>`. True by default.
    #[serde(rename = "enableDNSHostnames", skip_serializing_if = "Option::is_none")]
    pub enable_dns_hostnames: Option<bool>,

    /// Name of the headless Service, and the domain of the host names. The JobSet's name by
    /// default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subdomain: Option<String>,

    /// Publishes the names of pods that are not ready yet. True by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub publish_not_ready_addresses: Option<bool>,
}

/// The pod that coordinates the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Coordinator {
    /// Name of the replicatedJob that has the pod.
    pub replicated_job: String,

    /// Index of the Job within the replicatedJob; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = without_format)]
    pub job_index: Option<i64>,

    /// Completion index of the pod within the Job; 0 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(transform = without_format)]
    pub pod_index: Option<i64>,
}

/// Removes the format from the schema of Go's `int`, which has none in upstream's schema.
fn without_format(schema: &mut schemars::Schema) {
    schema.remove("format");
}

#[cfg(test)]
mod tests;
