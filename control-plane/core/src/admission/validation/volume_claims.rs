//! `spec.volumeClaimPolicies`: names, mounts, and claims that exist already.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec, PodSpec};
use lockstep_api::{JobSet, RetentionPolicy, VolumeClaimTemplate, naming};

use super::{Violation, path, syntax};
use crate::{common::semantic, jobset::volume_claims::mounts};

const LONGEST_CLAIM: usize = 63;

/// Every template, with its policy, the policy's path and its own path.
fn templates(
    jobset: &JobSet,
) -> impl Iterator<
    Item = (
        &lockstep_api::VolumeClaimPolicy,
        &VolumeClaimTemplate,
        String,
        String,
    ),
> {
    let policies = jobset.spec.volume_claim_policies.iter().enumerate();
    policies.flat_map(|(index, policy)| {
        let above = format!("spec.volumeClaimPolicies[{index}]");
        policy.templates.iter().enumerate().map(move |(index, template)| {
            let field = format!("{above}.template[{index}]");
            (policy, template, above.clone(), field)
        })
    })
}

fn pods(jobset: &JobSet) -> impl Iterator<Item = (usize, &PodSpec)> {
    let jobs = jobset.spec.replicated_jobs.iter().enumerate();
    jobs.filter_map(|(index, job)| Some((index, job.template.spec.as_ref()?.template.spec.as_ref()?)))
}

pub(super) fn validate(jobset: &JobSet, violations: &mut Vec<Violation>) {
    let mut names = BTreeSet::new();
    for (_, template, _, field) in templates(jobset) {
        let name = template.name();
        let field = format!("{field}.name");
        if !names.insert(name) {
            violations.push(Violation::with_value(
                &field,
                name,
                "names must be unique for VolumeClaimPolicies template",
            ));
        }
        violations
            .extend(syntax::dns1123_subdomain(name).map(|error| Violation::with_value(&field, name, error)));
        let claim = naming::claim_name(name, jobset.name());
        if claim.len() > LONGEST_CLAIM {
            let too_long = "VolumeClaimPolicies template name is too long";
            // The API server accepts longer claim names. The name of the volume must be a label.
            let can_be = syntax::dns1123_subdomain(&claim).next().is_none() && name.len() <= LONGEST_CLAIM;
            violations.push(Violation::with_value(&field, name, too_long).harmless_if(can_be));
        }
        volumes(jobset, name, violations);
    }
}

/// Checks that some container mounts the claim, and that no template already has a volume of that
/// name.
fn volumes(jobset: &JobSet, name: &str, violations: &mut Vec<Violation>) {
    for (index, pod) in pods(jobset) {
        let volumes = pod.volumes.iter().flatten().enumerate();
        for (volume, _) in volumes.filter(|(_, volume)| volume.name == name) {
            violations.push(Violation::with_value(
                path(
                    index,
                    &format!(".template.spec.template.spec.volumes[{volume}].name"),
                ),
                name,
                format!("volume name conflicts with VolumeClaimPolicy template name: {name}"),
            ));
        }
    }
    if !pods(jobset).any(|(_, pod)| mounts(pod, name)) {
        violations.push(Violation::with_json(
            "spec.replicatedJobs",
            &jobset.spec.replicated_jobs,
            format!(
                "replicatedJob containers don't have a matching volumeMount: {name} from VolumeClaimPolicies"
            ),
        )
        .harmless());
    }
}

/// The names of all claims that the JobSet creates.
pub(crate) fn names(jobset: &JobSet) -> Vec<String> {
    templates(jobset)
        .map(|(_, template, _, _)| naming::claim_name(template.name(), jobset.name()))
        .collect()
}

/// A claim that exists, or the error of looking for it.
pub type Existing = Result<PersistentVolumeClaim, String>;

/// Checks that each existing claim is what its template asks for, and is not deleted with the
/// JobSet. A failed lookup is a violation too.
pub(crate) fn against_existing(jobset: &JobSet, existing: &BTreeMap<String, Existing>) -> Vec<Violation> {
    let mut violations = Vec::new();
    for (policy, template, above, field) in templates(jobset) {
        let name = naming::claim_name(template.name(), jobset.name());
        let claim = match existing.get(&name) {
            None => continue,
            Some(Ok(claim)) => claim,
            Some(Err(error)) => {
                let message = format!("Internal error: failed to check for existing PVC {name}: {error}");
                violations.push(Violation::internal(field, message));
                continue;
            }
        };
        if !asks_for(template.spec.as_ref(), claim.spec.as_ref()) {
            violations.push(Violation::with_json(
                format!("{field}.spec"),
                &template.spec,
                format!(
                    "spec does not match existing PVC {name} in namespace {}",
                    jobset.ns()
                ),
            ));
        }
        if policy.when_deleted() != RetentionPolicy::Retain {
            violations.push(Violation::with_value(
                format!("{above}.retentionPolicy.whenDeleted"),
                policy.when_deleted().as_str(),
                "retentionPolicy must be retain when PVC exists",
            ));
        }
    }
    violations
}

/// True if a claim is as its template says. Ignores what the API server and the binding have filled
/// in.
fn asks_for(template: Option<&PersistentVolumeClaimSpec>, claim: Option<&PersistentVolumeClaimSpec>) -> bool {
    let unset = PersistentVolumeClaimSpec::default();
    let mut template = template.unwrap_or(&unset).clone();
    let claim = claim.unwrap_or(&unset);
    if template.volume_name.is_none() {
        template.volume_name.clone_from(&claim.volume_name);
    }
    if template.storage_class_name.is_none() {
        template.storage_class_name.clone_from(&claim.storage_class_name);
    }
    if template.volume_mode.is_none() {
        template.volume_mode.clone_from(&claim.volume_mode);
    }
    // The API server sets each source in both fields.
    match (&template.data_source, &template.data_source_ref) {
        (Some(_), None) => template.data_source_ref.clone_from(&claim.data_source_ref),
        (None, Some(_)) => template.data_source.clone_from(&claim.data_source),
        (Some(_), Some(_)) | (None, None) => {}
    }
    semantic::changes("spec", &template, claim).is_empty()
}
