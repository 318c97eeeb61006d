//! The whole status of a RayJob, if its definition drops a part of it.
//!
//! If KubeRay's definition of RayJobs is installed, the API server drops the fields of the status
//! that KubeRay does not have. Then the whole status is first written to an annotation, and after
//! that as the status. If the control plane crashes in between, the next decision follows the
//! annotation, and the status is brought up to date.
//!
//! If the definition keeps the whole status, the annotation is not written, not believed, and
//! removed. It never holds the address of the dashboard: a user who may write annotations, but not
//! the status, must not choose where the control plane connects to.

use std::sync::Arc;

use lockstep_api::ray::{RayJob, RayJobDeploymentStatus as Phase, RayJobStatus, keys};
use serde_json::{Value, json};

use super::attempt::is_begun;

/// The longest message that is kept, in bytes: annotations have little room.
const LONGEST: usize = 4096;

/// A RayJob as the last decision left it.
#[derive(Clone, Debug)]
pub struct Recalled {
    /// The RayJob with its whole status.
    pub job: Arc<RayJob>,
    /// True if the status on the API server is older than that.
    pub is_behind: bool,
    /// True if the definition has kept all of the last status.
    pub is_whole: bool,
}

/// The RayJob, with the fields that its definition has dropped from the status.
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
    // Another controller has begun it since: the status is newer than the annotation.
    if !shown.ray_cluster_name.is_empty() && !is_begun(job) {
        return as_it_is(Arc::clone(job));
    }
    let Some(mut status) = read(job) else {
        return as_it_is(without(job, shown));
    };
    // These are not in the annotation, or are shortened there.
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

/// A job without the annotation: KubeRay's definition keeps how many attempts have failed.
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

/// The value of the annotation to write before this status. `None` if the definition keeps all of
/// it, as it has kept all of the last one (`is_whole`).
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

/// True if the annotation exists and is about this RayJob. Others are kept.
pub(super) fn is_there(job: &RayJob) -> bool {
    own(job).is_some()
}

/// The status in the annotation.
fn read(job: &RayJob) -> Option<RayJobStatus> {
    serde_json::from_value(own(job)?["status"].take()).ok()
}

/// The annotation, if it is about this RayJob: a manifest may be a copy of another RayJob with its
/// annotations.
fn own(job: &RayJob) -> Option<Value> {
    let recorded: Value = serde_json::from_str(job.annotation(keys::JOB_STATUS)?).ok()?;
    (recorded["uid"] == job.uid_str()).then_some(recorded)
}

fn cut(text: &mut String) {
    text.truncate(text.floor_char_boundary(LONGEST));
}

/// The parts of a status that KubeRay's definition keeps, except the cluster's status.
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
