//! Drops what nobody here reads from objects before they are cached.

use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PodSpec, PodTemplateSpec, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use lockstep_api::{JobSet, labels};

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

/// The labels of Jobs that are read.
const JOB_LABELS: [&str; 6] = [
    labels::JOBSET_NAME,
    labels::JOBSET_UID,
    labels::REPLICATED_JOB_NAME,
    labels::JOB_INDEX,
    labels::RESTART_ATTEMPT,
    labels::JOB_RESTART_ATTEMPT,
];

/// Keeps of a Job what tells it apart, its numbers, policies and conditions, and of its pod template the lists that a resume adds to:
/// of everything else in the template a merge patch leaves alone what it does not name.
pub(super) fn job(job: &mut Job) {
    let whole = std::mem::take(&mut job.metadata);
    job.metadata = ObjectMeta {
        name: whole.name,
        namespace: whole.namespace,
        uid: whole.uid,
        resource_version: whole.resource_version,
        creation_timestamp: whole.creation_timestamp,
        deletion_timestamp: whole.deletion_timestamp,
        owner_references: whole.owner_references,
        labels: whole.labels,
        ..ObjectMeta::default()
    };
    if let Some(kept) = &mut job.metadata.labels {
        kept.retain(|key, _| JOB_LABELS.contains(&key.as_str()));
    }
    if let Some(spec) = &mut job.spec {
        let whole = std::mem::take(spec);
        *spec = JobSpec {
            parallelism: whole.parallelism,
            completions: whole.completions,
            completion_mode: whole.completion_mode,
            suspend: whole.suspend,
            pod_failure_policy: whole.pod_failure_policy,
            template: template(whole.template),
            ..JobSpec::default()
        };
    }
    if let Some(status) = &mut job.status {
        status.uncounted_terminated_pods = None;
    }
}

fn template(whole: PodTemplateSpec) -> PodTemplateSpec {
    let pod = whole.spec.unwrap_or_default();
    let lists = PodSpec {
        tolerations: pod.tolerations,
        scheduling_gates: pod.scheduling_gates,
        ..PodSpec::default()
    };
    PodTemplateSpec {
        metadata: None,
        spec: Some(lists),
    }
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
