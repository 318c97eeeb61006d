//! The RayCluster of an attempt, and the names and ids that follow from the RayJob's UID and the
//! number of the attempt.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lockstep_api::naming::hex_digest;
use lockstep_api::ray::{GROUP, RayCluster, RayJob, RayJobDeploymentStatus, RayJobStatus, VERSION, keys};

/// How many of the first and of the last attempts are compared. The number in the status is not
/// trusted: anyone who may write it can make it large.
const MOST_ATTEMPTS: i32 = 1000;

/// Name of the cluster of an attempt.
pub(super) fn cluster_name(job: &RayJob, attempt: i32) -> String {
    format!("{}-{}", job.name(), digits(job, "cluster", attempt))
}

/// True if this controller, and no other, has begun the job: the name of its cluster follows from
/// the job's UID and an attempt.
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

/// Ray's id of an attempt.
pub(super) fn job_id(job: &RayJob, attempt: i32) -> String {
    match (job.spec.job_id.as_str(), attempt) {
        ("", _) => format!("{}-{}", job.name(), digits(job, "job", attempt)),
        (stated, 0) => stated.to_owned(),
        (stated, attempt) => format!("{stated}-{attempt}"),
    }
}

/// Id of the latest attempt that was submitted: while the next one is prepared, it is the one
/// before.
pub(super) fn last_id(job: &RayJob, status: &RayJobStatus) -> String {
    match status.job_deployment_status {
        Some(RayJobDeploymentStatus::Retrying) => job_id(job, status.num_retries.saturating_sub(1).max(0)),
        _ => status.job_id.clone(),
    }
}

/// Five hex digits that follow from the RayJob and the attempt.
fn digits(job: &RayJob, what: &str, attempt: i32) -> String {
    let digest = hex_digest(&format!("{}/{what}/{attempt}", job.uid_str()));
    digest[..5].to_owned()
}

/// The cluster of the first attempt.
pub(in crate::ray) fn first_cluster(job: &RayJob) -> RayCluster {
    cluster_for(job, &cluster_name(job, 0))
}

/// The cluster of an attempt.
pub(super) fn cluster_for(job: &RayJob, name: &str) -> RayCluster {
    let mut spec = job.spec.ray_cluster_spec.clone().unwrap_or_default();
    spec.managed_by.clone_from(&job.spec.managed_by);
    let mut labels = job.metadata.labels.clone().unwrap_or_default();
    labels.extend(keys::originated_from_job(job.name()));
    let mode = job.spec.submission_mode();
    labels.insert(keys::SUBMISSION_MODE.to_owned(), mode.as_str().to_owned());
    RayCluster {
        metadata: ObjectMeta {
            name: Some(name.to_owned()),
            namespace: job.metadata.namespace.clone(),
            labels: Some(labels),
            annotations: job.metadata.annotations.clone().map(|mut annotations| {
                annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
                annotations.remove(keys::JOB_STATUS);
                annotations
            }),
            owner_references: Some(vec![owner(job)]),
            ..ObjectMeta::default()
        },
        spec,
        status: None,
    }
}

/// The job, as the controlling owner of its objects.
pub(in crate::ray) fn owner(job: &RayJob) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "RayJob".to_owned(),
        name: job.name().to_owned(),
        uid: job.uid_str().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}
