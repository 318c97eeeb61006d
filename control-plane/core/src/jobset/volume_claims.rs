//! `volumeClaimPolicies`: claims that the pods of a JobSet share (KEP-572).
//!
//! A missing claim is created, and never changed afterwards. An existing claim is used as it is.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimVolumeSource, PodSpec, Volume},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use lockstep_api::{JobSet, RetentionPolicy, VolumeClaimPolicy, VolumeClaimTemplate, labels, naming};

use crate::{jobset::observed::Observed, jobset::owner::owner_reference};

#[cfg(test)]
mod tests;

/// The claims to create.
pub(crate) fn missing(observed: &Observed) -> Vec<PersistentVolumeClaim> {
    let jobset = &*observed.jobset;
    let exists = |name: &str| {
        observed
            .claims
            .iter()
            .any(|claim| claim.metadata.name.as_deref() == Some(name))
    };
    jobset
        .spec
        .volume_claim_policies
        .iter()
        .flat_map(|policy| policy.templates.iter().map(move |template| (policy, template)))
        .filter(|(_, template)| !exists(&naming::claim_name(template.name(), jobset.name())))
        .map(|(policy, template)| claim(jobset, policy, template))
        .collect()
}

fn claim(
    jobset: &JobSet,
    policy: &VolumeClaimPolicy,
    template: &VolumeClaimTemplate,
) -> PersistentVolumeClaim {
    let meta = template.metadata.as_ref();
    let mut of_jobset: BTreeMap<_, _> = meta.and_then(|meta| meta.labels.clone()).unwrap_or_default();
    of_jobset.insert(labels::JOBSET_NAME.to_owned(), jobset.name().to_owned());
    // Without a stated or defaulted policy the claim stays: as upstream does it, and the safe
    // choice.
    let owned = policy.retention_policy.is_some() && policy.when_deleted() == RetentionPolicy::Delete;
    PersistentVolumeClaim {
        metadata: ObjectMeta {
            name: Some(naming::claim_name(template.name(), jobset.name())),
            namespace: jobset.metadata.namespace.clone(),
            labels: Some(of_jobset),
            annotations: meta.and_then(|meta| meta.annotations.clone()),
            owner_references: owned.then(|| vec![owner_reference(jobset)]),
            ..ObjectMeta::default()
        },
        spec: template.spec.clone(),
        status: None,
    }
}

/// Adds the volumes of claims that the pod's containers mount by the name of a template.
pub(crate) fn add_volumes(jobset: &JobSet, pod: &mut PodSpec) {
    let policies = jobset.spec.volume_claim_policies.iter();
    for template in policies.flat_map(|policy| &policy.templates) {
        let name = template.name();
        if mounts(pod, name) {
            pod.volumes.get_or_insert_default().push(Volume {
                name: name.to_owned(),
                persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
                    claim_name: naming::claim_name(name, jobset.name()),
                    read_only: None,
                }),
                ..Volume::default()
            });
        }
    }
}

/// True if some container of the pod mounts a volume of this name.
pub(crate) fn mounts(pod: &PodSpec, volume: &str) -> bool {
    let init = pod.init_containers.iter().flatten();
    init.chain(&pod.containers)
        .flat_map(|container| container.volume_mounts.iter().flatten())
        .any(|mount| mount.name == volume)
}
