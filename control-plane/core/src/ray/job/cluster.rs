//! The RayCluster of a RayJob.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lockstep_api::ray::{GROUP, RayCluster, RayJob, VERSION, keys};

use super::names::cluster_name;

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

/// The job as the controlling owner of what is made for it.
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
