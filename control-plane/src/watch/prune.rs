//! Drops what nobody here reads from objects before they are cached.

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::JobSet;

#[cfg(test)]
mod tests;

/// Written by kubectl: a copy of the whole object.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Keeps a JobSet's spec and status.
pub(super) fn jobset(jobset: &mut JobSet) {
    metadata(&mut jobset.metadata);
    if let Some(annotations) = &mut jobset.metadata.annotations {
        annotations.remove(LAST_APPLIED);
    }
}

/// Keeps all of a Job: its template is merged at resume and copied for replacement pods.
pub(super) fn job(job: &mut Job) {
    metadata(&mut job.metadata);
}

/// Keeps the name of a Service.
pub(super) fn service(service: &mut Service) {
    metadata(&mut service.metadata);
    service.spec = None;
    service.status = None;
}

/// Keeps the name of a persistent volume claim.
pub(super) fn claim(claim: &mut PersistentVolumeClaim) {
    metadata(&mut claim.metadata);
    claim.spec = None;
    claim.status = None;
}

fn metadata(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
}
