//! What the control plane sees of one RayJob, and what it does about it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_api::ray::{RayCluster, RayJob, RayJobStatus};
use serde_json::Value;

use crate::jobset::plan::{Event, JobRef};

/// A RayJob, what stands around it, and the time.
#[derive(Clone, Debug)]
pub struct ObservedJob {
    /// The RayJob itself, as it was recalled.
    pub job: Arc<RayJob>,
    /// True if the status that users see is older than the job's.
    pub is_behind: bool,
    /// True if the status that users see is the whole one.
    pub is_whole: bool,
    /// The RayCluster that the status names. `None`: there is none, once the job has begun to run,
    /// and not only for the watch.
    pub cluster: Option<Arc<RayCluster>>,
    /// The JobSet of that cluster.
    pub jobset: Option<Arc<JobSet>>,
    /// The Job that has the RayJob's name.
    pub submitter: Option<Arc<Job>>,
    /// True if pods of the cluster that the status names are still there, although it is not: they
    /// outlive one that was deleted without waiting for them. Looked at between attempts.
    pub has_left_pods: bool,
    /// How often the cluster's head has failed, as [`head_failures`] counts.
    pub head_failures: i32,
    /// What the dashboard says.
    pub ray: Ray,
    /// True if KubeRay's controller runs in this Kubernetes cluster.
    pub kuberay: bool,
    /// Since when jobs are watched without a break: what was not seen before says nothing.
    pub watched_since: Timestamp,
    /// The present.
    pub now: Timestamp,
}

/// What the dashboard says.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Ray {
    /// It was not asked.
    #[default]
    Unasked,
    /// It did not answer.
    Unreachable,
    /// It, or what stands before it, answered only with this HTTP status, and said nothing of the
    /// job.
    Denied(String),
    /// It will not take the job, and why.
    Refused(String),
    /// It has not taken the job for now, and why.
    Failing(String),
    /// It answered.
    Reached {
        /// The run of Ray.
        session: String,
        /// The job, where it knows it.
        job: Option<RayInfo>,
    },
}

/// A job, as Ray tells of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RayInfo {
    /// `PENDING`, `RUNNING`, `STOPPED`, `SUCCEEDED` or `FAILED`.
    pub status: String,
    /// More about it.
    pub message: String,
    /// When it began.
    pub start: Option<Timestamp>,
    /// When it ended.
    pub end: Option<Timestamp>,
}

impl RayInfo {
    pub(super) fn has_ended(&self) -> bool {
        has_ended(&self.status)
    }
}

/// True if a job with this status of Ray's has ended.
pub(super) fn has_ended(status: &str) -> bool {
    ["STOPPED", "SUCCEEDED", "FAILED"].contains(&status)
}

/// The writes that bring the world closer to what a RayJob asks for, from top to bottom. One that
/// fails ends the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobPlan {
    /// Put the finalizer on the RayJob, and no further.
    pub add_finalizer: bool,
    /// The job to stop at Ray. That it cannot be reached ends no plan.
    pub stop: Option<String>,
    /// The submitter to delete, and when its pods go.
    pub delete_submitter: Option<(JobRef, Pods)>,
    /// The cluster to delete.
    pub delete_cluster: Option<JobRef>,
    /// The cluster to create.
    pub create_cluster: Option<Box<RayCluster>>,
    /// The JobSet whose workers are all to be restarted, and the word that asks for it once.
    pub restart: Option<(JobRef, String)>,
    /// The job to submit over HTTP, as the body of the request.
    pub submit: Option<Value>,
    /// The submitter to create.
    pub create_submitter: Option<Box<Job>>,
    /// What to write into the annotation [`lockstep_api::ray::keys::JOB_STATUS`], before the
    /// status.
    pub status_annotation: Option<String>,
    /// Take that annotation away.
    pub forget: bool,
    /// The whole status to write, if it differs from the present one.
    pub status: Option<Box<RayJobStatus>>,
    /// To publish once all is written.
    pub events: Vec<Event>,
    /// Take the finalizer away.
    pub remove_finalizer: bool,
    /// Why nothing is done: to be told once for each generation.
    pub notice: Option<Event>,
    /// When to look again although nothing may have changed.
    pub requeue_after: Option<SignedDuration>,
    /// When a deadline passes, which waits for no write: to look again then although the plan could
    /// not be carried out.
    pub deadline: Option<SignedDuration>,
}

/// When the pods of a Job that is deleted go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// Before it (foreground): if the Job is gone nothing of it runs.
    First,
    /// In their own time (background): one of them may be on a node that is lost, and never go.
    Later,
}
