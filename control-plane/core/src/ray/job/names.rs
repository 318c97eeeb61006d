//! Names and ids, which follow from the RayJob's UID and the attempt.

use lockstep_api::naming::hex_digest;
use lockstep_api::ray::{RayJob, RayJobDeploymentStatus, RayJobStatus};

/// Attempts whose names are compared, of the first ones and of the last: the number of attempts is
/// what any writer put into the status.
const MOST_ATTEMPTS: i32 = 1000;

/// Name of the cluster of an attempt.
pub(super) fn cluster_name(job: &RayJob, attempt: i32) -> String {
    format!("{}-{}", job.name(), digits(job, "cluster", attempt))
}

/// True if this controller has begun the job, and no other one: the name of its cluster follows
/// from the job's UID and an attempt.
#[must_use]
pub fn is_begun(job: &RayJob) -> bool {
    let Some(status) = &job.status else {
        return false;
    };
    let last = status.num_retries.max(status.failed);
    let first = 0..=last.min(MOST_ATTEMPTS);
    let latest = last.saturating_sub(MOST_ATTEMPTS).max(MOST_ATTEMPTS + 1)..=last;
    let mut attempts = first.chain(latest);
    attempts.any(|attempt| status.ray_cluster_name == cluster_name(job, attempt))
}

/// Id of an attempt at Ray.
pub(super) fn job_id(job: &RayJob, attempt: i32) -> String {
    match (job.spec.job_id.as_str(), attempt) {
        ("", _) => format!("{}-{}", job.name(), digits(job, "job", attempt)),
        (stated, 0) => stated.to_owned(),
        (stated, attempt) => format!("{stated}-{attempt}"),
    }
}

/// Id of the attempt that was made last: while the next one is prepared, the one before.
pub(super) fn last_id(job: &RayJob, status: &RayJobStatus) -> String {
    match status.job_deployment_status {
        Some(RayJobDeploymentStatus::Retrying) => job_id(job, status.num_retries.saturating_sub(1).max(0)),
        _ => status.job_id.clone(),
    }
}

/// Five characters that follow from the RayJob and the attempt.
fn digits(job: &RayJob, what: &str, attempt: i32) -> String {
    let digest = hex_digest(&format!("{}/{what}/{attempt}", job.uid_str()));
    digest[..5].to_owned()
}
