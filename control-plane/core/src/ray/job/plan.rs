//! The observation of one RayJob, and the plan for it.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use lockstep_api::JobSet;
use lockstep_api::ray::{RayCluster, RayJob, RayJobStatus};
use serde_json::Value;

use crate::jobset::plan::{Event, JobRef};

/// A RayJob, the objects around it, and the time.
#[derive(Clone, Debug)]
pub struct ObservedJob {
    /// The RayJob with its whole status, see [`super::recall`].
    pub job: Arc<RayJob>,
    /// True if the status on the API server is older than the job's.
    pub is_behind: bool,
    /// True if the status on the API server is complete.
    pub is_whole: bool,
    /// The RayCluster that the status names. If the job runs, `None` was confirmed by the API
    /// server, not only by a watch.
    pub cluster: Option<Arc<RayCluster>>,
    /// The JobSet of that cluster.
    pub jobset: Option<Arc<JobSet>>,
    /// The Job with the RayJob's name.
    pub submitter: Option<Arc<Job>>,
    /// True if pods of the named cluster outlive it, because it was deleted without waiting for
    /// them. Observed only between attempts.
    pub has_left_pods: bool,
    /// How often the cluster's head has failed, as [`head_failures`] counts.
    pub head_failures: i32,
    /// The dashboard's answer.
    pub ray: Ray,
    /// True if KubeRay's controller runs in this Kubernetes cluster.
    pub kuberay: bool,
    /// Since when jobs are watched without a break. Earlier gaps prove nothing.
    pub watched_since: Timestamp,
    /// The current time.
    pub now: Timestamp,
}

/// The dashboard's answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Ray {
    /// It was not asked.
    #[default]
    Unasked,
    /// It did not answer.
    Unreachable,
    /// It, or a proxy in front of it, answered with this HTTP status and nothing about the job.
    Denied(String),
    /// It has refused the job, with this reason.
    Refused(String),
    /// It has not accepted the job yet, with this reason.
    Failing(String),
    /// It answered.
    Reached {
        /// The session: this run of Ray.
        session: String,
        /// The job, if it knows it.
        job: Option<RayInfo>,
    },
}

/// A job, as Ray reports it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RayInfo {
    /// `PENDING`, `RUNNING`, `STOPPED`, `SUCCEEDED` or `FAILED`.
    pub status: String,
    /// Details of the status.
    pub message: String,
    /// When it began.
    pub start: Option<Timestamp>,
    /// When it ended.
    pub end: Option<Timestamp>,
}

impl RayInfo {
    /// True if the job has ended.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        has_ended(&self.status)
    }
}

/// True if this status of Ray means that the job has ended.
pub(super) fn has_ended(status: &str) -> bool {
    ["STOPPED", "SUCCEEDED", "FAILED"].contains(&status)
}

/// The writes that bring the world closer to what a RayJob asks for, from top to bottom. One that
/// fails ends the plan.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JobPlan {
    /// Add the finalizer to the RayJob, and do nothing else.
    pub add_finalizer: bool,
    /// The id of the job to stop. If Ray cannot be reached, the plan still goes on.
    pub stop: Option<String>,
    /// The submitter to delete, and when its pods are deleted.
    pub delete_submitter: Option<(JobRef, Pods)>,
    /// The cluster to delete.
    pub delete_cluster: Option<JobRef>,
    /// The cluster to create.
    pub create_cluster: Option<Box<RayCluster>>,
    /// The JobSet whose workers must all restart, and the token of that request.
    pub restart: Option<(JobRef, String)>,
    /// The job to submit over HTTP, as the body of the request.
    pub submit: Option<Value>,
    /// The submitter to create.
    pub create_submitter: Option<Box<Job>>,
    /// The value to write to the annotation [`lockstep_api::ray::keys::JOB_STATUS`] before the
    /// status.
    pub status_annotation: Option<String>,
    /// Remove that annotation.
    pub forget: bool,
    /// The whole status to write, if it has changed.
    pub status: Option<Box<RayJobStatus>>,
    /// Events to publish once everything is written.
    pub events: Vec<Event>,
    /// Remove the finalizer.
    pub remove_finalizer: bool,
    /// Why nothing is done; published once for each generation.
    pub notice: Option<Event>,
    /// When to reconcile again even if nothing changes.
    pub requeue_after: Option<SignedDuration>,
    /// When a deadline passes. Reconcile then even if a write of this plan has failed.
    pub deadline: Option<SignedDuration>,
}

/// When the pods of a deleted Job are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pods {
    /// Before the Job (foreground): once it is gone, none of its pods run.
    First,
    /// After the Job (background): one of them may be on a lost node, and stay.
    Later,
}
