//! The RayJob resource.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{RayClusterSpec, RayClusterStatus, Unknown, managed};
use crate::shared::{object, string_enum};

type Map = BTreeMap<String, String>;

/// Desired state of a RayJob.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "ray.io",
    version = "v1",
    kind = "RayJob",
    plural = "rayjobs",
    namespaced,
    status = "RayJobStatus",
    derive = "PartialEq",
    derive = "Default",
    schema = "disabled",
    attr = "cfg_attr(true, serde(default))",
    doc = "A Ray job, and the cluster that it runs on."
)]
#[serde(default, rename_all = "camelCase")]
pub struct RayJobSpec {
    /// The command that Ray runs.
    pub entrypoint: String,
    /// Ray's runtime environment, as YAML.
    #[serde(rename = "runtimeEnvYAML")]
    pub runtime_env_yaml: String,
    /// Metadata that Ray keeps with the job.
    pub metadata: Map,
    /// CPUs for the entrypoint.
    pub entrypoint_num_cpus: Option<f64>,
    /// GPUs for the entrypoint.
    pub entrypoint_num_gpus: Option<f64>,
    /// Other resources for the entrypoint, as JSON.
    pub entrypoint_resources: String,
    /// Id of the job; generated if it is not set.
    pub job_id: String,
    /// How the job is submitted to Ray.
    pub submission_mode: Option<RayJobSubmissionMode>,
    /// The cluster that is created for the job.
    pub ray_cluster_spec: Option<RayClusterSpec>,
    /// An existing cluster. Refused.
    pub cluster_selector: Map,
    /// The pod that submits the job.
    pub submitter_pod_template: Option<PodTemplateSpec>,
    /// Settings of the submission.
    pub submitter_config: Option<SubmitterConfig>,
    /// Seconds after which the job is stopped, all attempts together.
    pub active_deadline_seconds: Option<i64>,
    /// Seconds within which the job must have been submitted.
    pub pre_running_deadline_seconds: Option<i64>,
    /// How often a failed job is retried.
    pub backoff_limit: Option<i32>,
    /// Another name of `backoffLimit` (an addition).
    pub max_retries: Option<i32>,
    /// What a failed job is retried on (an addition).
    pub retry_policy: Option<RayJobRetryPolicy>,
    /// If true, the job waits for all pods, and not only for the head (an addition).
    pub wait_for_all_pods_healthy: Option<bool>,
    /// If true, the cluster is deleted after the job has ended.
    pub shutdown_after_job_finishes: Option<bool>,
    /// Seconds from the end of the job to that deletion.
    pub ttl_seconds_after_finished: Option<i64>,
    /// If true, the job has no pods.
    pub suspend: Option<bool>,
    /// The controller that manages the job.
    pub managed_by: Option<String>,
    /// All other fields.
    #[serde(flatten)]
    pub other: Unknown,
}

/// Settings of the submission.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SubmitterConfig {
    /// How often the submitter's pod may fail before the job fails; 2 by default.
    pub backoff_limit: Option<i32>,
    /// All other fields.
    #[serde(flatten)]
    pub other: Unknown,
}

string_enum! {
    /// How a job is submitted to Ray.
    pub enum RayJobSubmissionMode {
        /// By a Kubernetes Job that submits it and follows its logs.
        K8sJobMode,
        /// By this controller, over HTTP.
        HTTPMode,
        /// By a container of the head's pod. Refused.
        SidecarMode,
        /// By the user. Refused.
        InteractiveMode,
    }
}

string_enum! {
    /// What a failed job is retried on.
    pub enum RayJobRetryPolicy {
        /// The same pods, in which Ray is restarted.
        InPlace,
        /// A new cluster.
        NewCluster,
    }
}

string_enum! {
    /// State of a RayJob.
    pub enum RayJobDeploymentStatus {
        /// The cluster is starting.
        Initializing,
        /// The job has been submitted, or is being submitted by its submitter.
        Running,
        /// The job has succeeded.
        Complete,
        /// The job has failed for good.
        Failed,
        /// Its objects are being deleted, as `spec.suspend` requests.
        Suspending,
        /// It has no pods, as `spec.suspend` requests.
        Suspended,
        /// It has failed, and its next attempt is being prepared.
        Retrying,
        /// The spec is invalid.
        ValidationFailed,
    }
}

/// Observed state of a RayJob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RayJobStatus {
    /// Ray's id of the job, of the present attempt.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job_id: String,
    /// Name of the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ray_cluster_name: String,
    /// Host and port of the dashboard.
    #[serde(rename = "dashboardURL", skip_serializing_if = "String::is_empty")]
    pub dashboard_url: String,
    /// State of the job at Ray: `PENDING`, `RUNNING`, `STOPPED`, `SUCCEEDED` or `FAILED`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub job_status: String,
    /// State of the RayJob; absent until the controller has seen it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_deployment_status: Option<RayJobDeploymentStatus>,
    /// Why it failed, in one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Ray's message about the job, or why it failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// When the first attempt began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When the job ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
    /// Attempts that succeeded.
    pub succeeded: i32,
    /// Attempts that failed.
    pub failed: i32,
    /// How often the job was retried.
    pub num_retries: i32,
    /// True if the job was stopped at its deadline.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub deadline_exceeded: bool,
    /// When the job began and ended at Ray.
    #[serde(skip_serializing_if = "RayJobInfo::is_empty")]
    pub ray_job_info: RayJobInfo,
    /// The run of Ray that the present attempt belongs to. A restarted head is another run.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub session: String,
    /// The run of Ray that the previous attempt belonged to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub previous_session: String,
    /// Since when Ray has been unreachable, while it should be reachable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreachable_since: Option<Time>,
    /// When the wait between two attempts, or for a suspension, began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retrying_since: Option<Time>,
    /// When the job was submitted for the first time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_submission_time: Option<Time>,
    /// Since when the submitter has had no pod, or only one that does not terminate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submitter_lost_since: Option<Time>,
    /// Restarts of the cluster's pods before this attempt. It is always written: if it is absent,
    /// the CRD of RayJobs has pruned it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restarts_before: Option<i32>,
    /// Failures of the head's pods and containers before this attempt that no restart accounts for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub head_failures_before: Option<i32>,
    /// True if the next attempt needs another cluster, because the head of this one did not come
    /// up.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub needs_new_cluster: bool,
    /// Status of the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ray_cluster_status: Option<RayClusterStatus>,
    /// What has happened to the job, by condition type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status describes.
    pub observed_generation: i64,
}

/// Times of a job at Ray.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RayJobInfo {
    /// When it began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_time: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_time: Option<Time>,
}

impl RayJobInfo {
    fn is_empty(&self) -> bool {
        self.start_time.is_none() && self.end_time.is_none()
    }
}

object!(RayJob);
managed!(RayJob);

impl RayJobSpec {
    /// How the job is submitted to Ray.
    pub fn submission_mode(&self) -> RayJobSubmissionMode {
        self.submission_mode.clone().unwrap_or_default()
    }

    /// How often a failed job is retried.
    pub fn retries(&self) -> i32 {
        self.max_retries.or(self.backoff_limit).unwrap_or(0).max(0)
    }

    /// True if the cluster is deleted when the job ends.
    pub fn shuts_down(&self) -> bool {
        self.shutdown_after_job_finishes.unwrap_or(false)
    }

    /// True if the job is suspended.
    pub fn is_suspended(&self) -> bool {
        self.suspend.unwrap_or(false)
    }

    /// The paths below `path` of fields that are set but not supported.
    pub fn unsupported(&self, path: &str) -> Vec<String> {
        let mut paths: Vec<String> = self.other.paths(path).collect();
        if let Some(config) = &self.submitter_config {
            paths.extend(config.other.paths(&format!("{path}.submitterConfig")));
        }
        if let Some(cluster) = &self.ray_cluster_spec {
            paths.extend(cluster.unsupported(&format!("{path}.rayClusterSpec")));
        }
        paths
    }
}
