//! Host names: the subdomain, and the coordinator pod, which must exist and have a host name that
//! fits in a label.

use lockstep_api::{JobSet, labels};

use super::{Violation, dns1035_label, syntax};

pub(super) fn subdomain(jobset: &JobSet, violations: &mut Vec<Violation>) {
    let Some(subdomain) = jobset
        .spec
        .network
        .as_ref()
        .and_then(|network| network.subdomain.as_deref())
    else {
        return;
    };
    if subdomain.is_empty() {
        return;
    }
    let field = "spec.network.subdomain";
    violations.extend(
        syntax::dns1123_subdomain(subdomain).map(|error| Violation::with_value(field, subdomain, error)),
    );
    let too_long = ".spec.network.subdomain is too long, must be less than 63 characters";
    violations.extend(
        dns1035_label(subdomain, too_long).map(|error| Violation::with_value(field, subdomain, error)),
    );
}

pub(super) fn coordinator(jobset: &JobSet, violations: &mut Vec<Violation>) {
    let (Some(coordinator), Some(endpoint)) = (&jobset.spec.coordinator, jobset.coordinator_endpoint())
    else {
        return;
    };
    // Nothing waits for the coordinator: without its pod the label only points to nothing.
    violations.extend(pod(jobset, coordinator).err().map(Violation::harmless));
    let errors = syntax::label_value(&endpoint);
    if !errors.is_empty() {
        violations.push(Violation::internal(
            "spec.coordinator",
            format!(
                "spec will lead to invalid label value \"{endpoint}\" for coordinator label \"{}\" (long JobSet / ReplicatedJob / \
                 SubDomain name?): {}",
                labels::COORDINATOR,
                errors.join(", ")
            ),
        ));
    }
}

fn pod(jobset: &JobSet, coordinator: &lockstep_api::Coordinator) -> Result<(), Violation> {
    let name = &coordinator.replicated_job;
    let Some(replicated_job) = jobset.replicated_job(name) else {
        let message = format!("coordinator replicatedJob {name} does not exist");
        return Err(Violation::internal("spec.coordinator.replicatedJob", message));
    };
    let job_index = coordinator.job_index();
    if !(0..i64::from(replicated_job.replicas())).contains(&job_index) {
        let message = format!("coordinator job index {job_index} is invalid for replicatedJob {name}");
        return Err(Violation::internal("spec.coordinator.jobIndex", message));
    }
    let spec = replicated_job.template.spec.as_ref();
    let indexed = spec
        .and_then(|spec| spec.completion_mode.as_deref())
        .is_none_or(|mode| mode == "Indexed");
    let Some(completions) = spec.and_then(|spec| spec.completions).filter(|_| indexed) else {
        let message =
            "job for coordinator pod must be indexed completion mode, and completions number must be set";
        return Err(Violation::internal("spec.coordinator.replicatedJob", message));
    };
    let pod_index = coordinator.pod_index();
    if !(0..i64::from(completions)).contains(&pod_index) {
        let message = format!(
            "coordinator pod index {pod_index} is invalid for replicatedJob {name} job index {job_index}"
        );
        return Err(Violation::internal("spec.coordinator.podIndex", message));
    }
    Ok(())
}
