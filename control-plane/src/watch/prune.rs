//! Drops what nobody here reads from objects before they are cached.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{Container, PersistentVolumeClaim, Pod, PodSpec, PodStatus, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{JobSet, annotations, labels};

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

/// Keeps of a pod: metadata (of the annotations those that are not labels too), node and container names, phase, conditions and the
/// statuses of its containers.
pub(super) fn pod(pod: &mut Pod) {
    metadata(&mut pod.metadata);
    if let Some(kept) = &mut pod.metadata.annotations {
        kept.retain(|key, _| {
            key == annotations::IN_PLACE_RESTART_ATTEMPT
                || key == labels::BATCH_JOB_COMPLETION_INDEX
                || key.starts_with("lockstep.dev/")
        });
    }
    if let Some(kept) = &mut pod.metadata.labels {
        shrink(kept);
    }
    if let Some(spec) = &mut pod.spec {
        let whole = std::mem::take(spec);
        *spec = PodSpec {
            node_name: whole.node_name,
            containers: whole
                .containers
                .into_iter()
                .map(|container| named(container.name))
                .collect(),
            ..PodSpec::default()
        };
    }
    if let Some(status) = &mut pod.status {
        let whole = std::mem::take(status);
        *status = PodStatus {
            phase: whole.phase,
            reason: whole.reason,
            message: whole.message,
            conditions: whole.conditions,
            container_statuses: whole.container_statuses,
            init_container_statuses: whole.init_container_statuses,
            start_time: whole.start_time,
            ..PodStatus::default()
        };
        let init = status.init_container_statuses.iter_mut().flatten();
        for container in init.chain(status.container_statuses.iter_mut().flatten()) {
            container.image = String::new();
            container.image_id = String::new();
            container.resources = None;
            container.allocated_resources = None;
            container.allocated_resources_status = None;
            container.volume_mounts = None;
        }
    }
}

fn named(name: String) -> Container {
    Container {
        name,
        ..Container::default()
    }
}

/// Of a pod's labels, those by which it is found and told apart.
fn shrink(kept: &mut BTreeMap<String, String>) {
    kept.retain(|key, _| key.starts_with("jobset.sigs.k8s.io/") || key.starts_with("batch.kubernetes.io/"));
}

fn metadata(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
}
