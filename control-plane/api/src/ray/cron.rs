//! The RayCronJob resource.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::CustomResource;
use serde::{Deserialize, Serialize};

use super::{RayJobSpec, Unknown, managed};
use crate::shared::{object, string_enum};

/// The default number of succeeded jobs that are kept.
const SUCCESSFUL_KEPT: i32 = 3;
/// The default number of failed jobs that are kept.
const FAILED_KEPT: i32 = 1;

/// Desired state of a RayCronJob. Fields are those of Kubernetes' CronJob.
#[derive(CustomResource, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[kube(
    group = "ray.io",
    version = "v1",
    kind = "RayCronJob",
    plural = "raycronjobs",
    namespaced,
    status = "RayCronJobStatus",
    derive = "PartialEq",
    derive = "Default",
    schema = "disabled",
    attr = "cfg_attr(true, serde(default))",
    doc = "RayJobs that are started at given times."
)]
#[serde(default, rename_all = "camelCase")]
pub struct RayCronJobSpec {
    /// When jobs start: five fields of cron, or a name such as `@hourly`.
    pub schedule: String,
    /// Name of the time zone of the schedule, in the IANA database; UTC by default.
    pub time_zone: Option<String>,
    /// If true, no further jobs are started.
    pub suspend: Option<bool>,
    /// What happens to a start while an earlier job still runs (an addition).
    pub concurrency_policy: Option<ConcurrencyPolicy>,
    /// Seconds by which a start may be late; later than that it is missed (an addition).
    pub starting_deadline_seconds: Option<i64>,
    /// How many succeeded jobs are kept (an addition).
    pub successful_jobs_history_limit: Option<i32>,
    /// How many failed jobs are kept (an addition).
    pub failed_jobs_history_limit: Option<i32>,
    /// The spec of the jobs.
    pub job_template: RayJobSpec,
    /// The controller that manages it (an addition).
    pub managed_by: Option<String>,
    /// All other fields.
    #[serde(flatten)]
    pub other: Unknown,
}

string_enum! {
    /// What happens to a start while an earlier job still runs.
    pub enum ConcurrencyPolicy {
        /// Both run.
        Allow,
        /// It waits until none runs, and is missed if its deadline passes meanwhile.
        Forbid,
        /// The earlier job is deleted.
        Replace,
    }
}

/// Observed state of a RayCronJob.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RayCronJobStatus {
    /// The jobs that have not ended.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub active: Vec<ObjectReference>,
    /// The scheduled time of the latest job that was started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_schedule_time: Option<Time>,
    /// When a job last succeeded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_successful_time: Option<Time>,
    /// What is wrong with the spec, by condition type.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The generation of the spec that this status describes.
    pub observed_generation: i64,
}

object!(RayCronJob);
managed!(RayCronJob);

impl RayCronJobSpec {
    /// What happens to a start while an earlier job still runs.
    pub fn concurrency_policy(&self) -> ConcurrencyPolicy {
        self.concurrency_policy.clone().unwrap_or_default()
    }

    /// True if no further jobs are started.
    pub fn is_suspended(&self) -> bool {
        self.suspend.unwrap_or(false)
    }

    /// How many succeeded jobs are kept.
    pub fn successful_kept(&self) -> i32 {
        self.successful_jobs_history_limit.unwrap_or(SUCCESSFUL_KEPT)
    }

    /// How many failed jobs are kept.
    pub fn failed_kept(&self) -> i32 {
        self.failed_jobs_history_limit.unwrap_or(FAILED_KEPT)
    }

    /// The paths below `path` of fields that are set but not supported.
    pub fn unsupported(&self, path: &str) -> Vec<String> {
        let own = self.other.paths(path);
        own.chain(self.job_template.unsupported(&format!("{path}.jobTemplate")))
            .collect()
    }
}
