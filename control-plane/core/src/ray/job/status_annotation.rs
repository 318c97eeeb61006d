//! The status of a RayJob where its definition does not keep all of it.
//!
//! The definition of RayJobs that is installed may be KubeRay's: the API server then drops the
//! parts of the status that KubeRay does not have. The whole status is written to an annotation in
//! that case, before it is written as the status: whatever dies in between, what is decided next
//! follows from the annotation. What is shown is brought up to it.
//!
//! If the definition keeps the whole status the annotation is not made, not believed, and taken
//! away. Where the dashboard is never stands in it: a user who may write annotations, but no
//! status, must not choose where the control plane connects to.

use std::sync::Arc;

use lockstep_api::ray::{RayJob, RayJobDeploymentStatus as Phase, RayJobStatus, keys};
use serde_json::{Value, json};

use super::attempt::is_begun;

/// The longest text of a message that is kept: annotations have little room.
const LONGEST: usize = 4096;

/// A RayJob, as the last decision left it.
#[derive(Clone, Debug)]
pub struct Recalled {
    /// The RayJob with its whole status.
    pub job: Arc<RayJob>,
    /// True if the status that users see is older than that.
    pub is_behind: bool,
    /// True if the definition has kept the whole of the last status.
    pub is_whole: bool,
}

/// The RayJob with what its definition has dropped of its status.
#[must_use]
pub fn recall(job: &Arc<RayJob>) -> Recalled {
    let shown = job.status.clone().unwrap_or_default();
    let is_whole = shown.restarts_before.is_some();
    let as_it_is = |job: Arc<RayJob>| Recalled {
        job,
        is_behind: false,
        is_whole,
    };
    if is_whole {
        return as_it_is(Arc::clone(job));
    }
    // Another controller has begun it since: what is shown is newer than what is remembered.
    if !shown.ray_cluster_name.is_empty() && !is_begun(job) {
        return as_it_is(Arc::clone(job));
    }
    let Some(mut status) = read(job) else {
        return as_it_is(without(job, shown));
    };
    // What does not stand in the annotation, or is cut short there.
    status.dashboard_url.clone_from(&shown.dashboard_url);
    status.ray_cluster_status.clone_from(&shown.ray_cluster_status);
    if shown.message.starts_with(&status.message) {
        status.message.clone_from(&shown.message);
    }
    let is_behind = kept(&status) != kept(&shown);
    let job = RayJob {
        status: Some(status),
        ..(**job).clone()
    };
    Recalled {
        job: Arc::new(job),
        is_behind,
        is_whole,
    }
}

/// What is known of a job that has no annotation: KubeRay's definition keeps how many attempts have
/// failed.
fn without(job: &Arc<RayJob>, shown: RayJobStatus) -> Arc<RayJob> {
    let is_live = matches!(
        shown.job_deployment_status,
        Some(Phase::Initializing | Phase::Running | Phase::Retrying)
    );
    if !is_live || shown.num_retries >= shown.failed {
        return Arc::clone(job);
    }
    let status = RayJobStatus {
        num_retries: shown.failed,
        ..shown
    };
    Arc::new(RayJob {
        status: Some(status),
        ..(**job).clone()
    })
}

/// The value of the annotation that is to be written before this status. `None`: the definition
/// keeps all of it, as it has `is_whole` kept the last one.
pub(super) fn value(job: &RayJob, status: &RayJobStatus, is_whole: bool) -> Option<String> {
    if is_whole {
        return None;
    }
    let is_begun = |status: &&RayJobStatus| status.job_deployment_status.is_some();
    let is_dropped = job
        .status
        .as_ref()
        .filter(is_begun)
        .is_some_and(|status| status.restarts_before.is_none());
    if !is_dropped && job.annotation(keys::JOB_STATUS).is_none() {
        return None;
    }
    let mut status = RayJobStatus {
        dashboard_url: String::new(),
        ray_cluster_status: None,
        ..status.clone()
    };
    cut(&mut status.message);
    for condition in &mut status.conditions {
        cut(&mut condition.message);
    }
    Some(json!({"uid": job.uid_str(), "status": status}).to_string())
}

/// True if the annotation is there, and about this RayJob. What others have written stays.
pub(super) fn is_there(job: &RayJob) -> bool {
    own(job).is_some()
}

/// The status in the annotation.
fn read(job: &RayJob) -> Option<RayJobStatus> {
    serde_json::from_value(own(job)?["status"].take()).ok()
}

/// The annotation, if that is about this RayJob: a manifest may be made from another one, with its
/// annotations.
fn own(job: &RayJob) -> Option<Value> {
    let recorded: Value = serde_json::from_str(job.annotation(keys::JOB_STATUS)?).ok()?;
    (recorded["uid"] == job.uid_str()).then_some(recorded)
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(LONGEST));
}

/// The parts of a status that KubeRay's definition keeps, but for the cluster's status.
fn kept(status: &RayJobStatus) -> RayJobStatus {
    RayJobStatus {
        num_retries: 0,
        deadline_exceeded: false,
        session: String::new(),
        previous_session: String::new(),
        unreachable_since: None,
        retrying_since: None,
        first_submission_time: None,
        submitter_lost_since: None,
        restarts_before: None,
        head_failures_before: None,
        needs_new_cluster: false,
        ray_cluster_status: None,
        conditions: Vec::new(),
        ..status.clone()
    }
}
