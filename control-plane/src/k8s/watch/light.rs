//! What is kept of a JobSet while its group or gang runs: everything that decisions need, and
//! nothing else of the pod templates.
//!
//! A volume of two bytes takes 3 kB once it is parsed, and a group lives as long as its JobSet. For
//! every question that the keepers of a JobSet ask about a template ([`in_place`], the needs of
//! gangs), the light JobSet gives the same answer as the whole one. Writes to the API server are
//! made from Jobs or are patches.

use std::sync::Arc;

use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    Container, EphemeralVolumeSource, Lifecycle, LifecycleHandler, PersistentVolumeClaimVolumeSource,
    PodSpec, Probe, Volume,
};
use lockstep_api::JobSet;
use lockstep_core::common::extent::Extent;
use lockstep_core::jobset::in_place;

#[cfg(test)]
mod tests;

/// The JobSet without the fields that its keepers do not read.
#[must_use]
pub fn light(mut jobset: JobSet) -> JobSet {
    for job in &mut jobset.spec.replicated_jobs {
        let template = job.template.spec.as_mut();
        if let Some(pod) = template.and_then(|job| job.template.spec.as_mut()) {
            lighten(pod);
        }
    }
    jobset
}

/// The size of a light JobSet in memory, in units of about 1 kB.
#[must_use]
pub fn weight(light: &JobSet) -> usize {
    let text = serde_json::to_vec(light).unwrap_or_default();
    let Extent { objects, elements } = Extent::of_text(&text);
    objects.max(elements / 8).max(text.len() / 1024)
}

/// The Job without the fields that gangs do not need: the lists of its template, and its failure
/// policy.
#[must_use]
pub fn light_job(job: Arc<Job>) -> Arc<Job> {
    let mut job = Arc::unwrap_or_clone(job);
    if let Some(spec) = &mut job.spec {
        spec.pod_failure_policy = None;
        spec.template.spec = None;
    }
    Arc::new(job)
}

fn lighten(pod: &mut PodSpec) {
    pod.volumes = pod.volumes.take().and_then(|volumes| claim(&volumes));
    for container in pod
        .init_containers
        .iter_mut()
        .flatten()
        .chain(&mut pod.containers)
    {
        lighten_container(container);
    }
    // Only the presence of an entry matters.
    first(&mut pod.resource_claims, |_| true);
    first(&mut pod.topology_spread_constraints, |one| {
        one.when_unsatisfiable == "DoNotSchedule"
    });
    pod.security_context = None;
    pod.image_pull_secrets = None;
    pod.host_aliases = None;
    pod.dns_config = None;
    pod.readiness_gates = None;
    pod.ephemeral_containers = None;
}

/// One volume that stands for all volumes with claims.
fn claim(volumes: &[Volume]) -> Option<Vec<Volume>> {
    let found = volumes
        .iter()
        .find(|volume| volume.persistent_volume_claim.is_some() || volume.ephemeral.is_some())?;
    let claim = &found.persistent_volume_claim;
    Some(vec![Volume {
        name: found.name.clone(),
        persistent_volume_claim: claim
            .as_ref()
            .map(|_| PersistentVolumeClaimVolumeSource::default()),
        ephemeral: found.ephemeral.as_ref().map(|_| EphemeralVolumeSource::default()),
        ..Volume::default()
    }])
}

fn lighten_container(container: &mut Container) {
    container.args = None;
    container.env_from = None;
    container.volume_devices = None;
    container.readiness_probe = None;
    container.security_context = None;
    container.resize_policy = None;
    if let Some(command) = &mut container.command {
        command.truncate(1);
    }
    if let Some(env) = &mut container.env {
        env.retain(|variable| in_place::identifies_upstream_agent(&variable.name));
        for variable in env {
            variable.value = None;
            variable.value_from = None;
        }
    }
    first(&mut container.ports, |port| {
        port.host_port.is_some_and(|port| port != 0)
    });
    for probe in [&mut container.liveness_probe, &mut container.startup_probe] {
        *probe = probe.take().map(|_| Probe::default());
    }
    container.lifecycle = container.lifecycle.take().map(|lifecycle| Lifecycle {
        post_start: lifecycle.post_start.map(|_| LifecycleHandler::default()),
        ..Lifecycle::default()
    });
}

/// Keeps only the first matching item.
fn first<T>(items: &mut Option<Vec<T>>, matches: impl Fn(&T) -> bool) {
    if let Some(items) = items {
        items.retain(matches);
        items.truncate(1);
    }
}
