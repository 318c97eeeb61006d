//! Warnings for users who create or change Ray's resources, when nothing is refused.

mod unknown;

use lockstep_api::ray::{
    RayCluster, RayClusterSpec, RayCronJob, RayJob, RayJobDeploymentStatus as Phase, RayJobSpec,
    WorkerGroupSpec,
};
use serde_json::Value;

const NEXT_CLUSTER: &str = "takes effect with the job's next cluster";
const NEXT_ATTEMPT: &str = "takes effect with the next attempt";
const NEVER: &str = "has no effect: the job has ended";

pub(super) fn cluster(new: &RayCluster) -> Vec<String> {
    let mut all = of_groups("spec", &new.spec);
    all.extend(unknown::ignored(new.spec.unsupported("spec")));
    all
}

/// Warnings about the pod templates in a spec, as submitted.
pub(super) fn templates(spec: &Value) -> Vec<String> {
    unknown::of_templates("spec", spec)
}

pub(super) fn cron(new: &RayCronJob) -> Vec<String> {
    let mut all = of_cluster("spec.jobTemplate", &new.spec.job_template);
    all.extend(unknown::ignored(new.spec.unsupported("spec")));
    all
}

pub(super) fn job(old: Option<&RayJob>, new: &RayJob) -> Vec<String> {
    let mut all = of_cluster("spec", &new.spec);
    all.extend(unknown::ignored(new.spec.unsupported("spec")));
    all.extend(old.into_iter().flat_map(|old| without_effect(old, new)));
    all
}

fn of_cluster(path: &str, job: &RayJobSpec) -> Vec<String> {
    let cluster = job.ray_cluster_spec.as_ref();
    cluster.map_or_else(Vec::new, |cluster| {
        of_groups(&format!("{path}.rayClusterSpec"), cluster)
    })
}

/// Replicas outside their limits. The nearest limit is used, as in KubeRay.
fn of_groups(path: &str, cluster: &RayClusterSpec) -> Vec<String> {
    let groups = cluster.worker_group_specs.iter().enumerate();
    groups
        .filter_map(|(index, group)| of_group(&format!("{path}.workerGroupSpecs[{index}]"), group))
        .collect()
}

fn of_group(path: &str, group: &WorkerGroupSpec) -> Option<String> {
    let (stated, least) = (group.replicas?, group.min_replicas());
    let (limit, name) = match group.max_replicas {
        Some(most) if stated > most && most >= least => (most, "maxReplicas"),
        _ if stated < least => (least, "minReplicas"),
        _ => return None,
    };
    Some(format!(
        "{path}.replicas: {stated}, but {name} is {limit}: taken as {limit}"
    ))
}

/// Changes to a started job that take effect later or never.
fn without_effect(old: &RayJob, new: &RayJob) -> Vec<String> {
    let (before, after) = (&old.spec, &new.spec);
    let of_cluster = [(
        "spec.rayClusterSpec",
        before.ray_cluster_spec != after.ray_cluster_spec,
    )];
    let of_attempt = [
        ("spec.entrypoint", before.entrypoint != after.entrypoint),
        (
            "spec.runtimeEnvYAML",
            before.runtime_env_yaml != after.runtime_env_yaml,
        ),
        ("spec.metadata", before.metadata != after.metadata),
        (
            "spec.entrypointNumCpus",
            before.entrypoint_num_cpus != after.entrypoint_num_cpus,
        ),
        (
            "spec.entrypointNumGpus",
            before.entrypoint_num_gpus != after.entrypoint_num_gpus,
        ),
        (
            "spec.entrypointResources",
            before.entrypoint_resources != after.entrypoint_resources,
        ),
        (
            "spec.submissionMode",
            before.submission_mode() != after.submission_mode(),
        ),
        (
            "spec.submitterPodTemplate",
            before.submitter_pod_template != after.submitter_pod_template,
        ),
    ];
    let status = old.status.as_ref();
    let Some(phase) = status.and_then(|status| status.job_deployment_status.as_ref()) else {
        return Vec::new();
    };
    let changed = |fields: &[(&str, bool)], when: &str| {
        let changed = fields.iter().filter(|(_, is_changed)| *is_changed);
        let paths: Vec<&str> = changed.map(|(path, _)| *path).collect();
        (!paths.is_empty()).then(|| format!("{}: {when}", paths.join(", ")))
    };
    let (cluster, attempt) = match phase {
        Phase::Initializing | Phase::Retrying => (Some(NEXT_CLUSTER), None),
        Phase::Running => (Some(NEXT_CLUSTER), Some(NEXT_ATTEMPT)),
        Phase::Complete | Phase::Failed => (Some(NEVER), Some(NEVER)),
        _ => (None, None),
    };
    let cluster = cluster.and_then(|when| changed(&of_cluster, when));
    let attempt = attempt.and_then(|when| changed(&of_attempt, when));
    cluster.into_iter().chain(attempt).collect()
}
