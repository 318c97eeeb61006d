//! The JobSet of a RayCluster.
//!
//! Promises: the same cluster always gives the same JobSet; if the digests of the running JobSet
//! and of the wanted one are equal, they differ only in numbers of workers.

use std::collections::BTreeMap;

use k8s_openapi::api::batch::v1::{JobSpec, JobTemplateSpec};
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use lockstep_api::annotations::{RESTART_SCOPE, SUPERVISE, SUPERVISE_NONE};
use lockstep_api::naming::hex_digest;
use lockstep_api::ray::{GROUP, RayCluster, VERSION, WorkerGroupSpec, keys};
use lockstep_api::{
    DependsOn, DependsOnStatus, FailurePolicy, Gang, JobSet, JobSetSpec, Operator, ReplicatedJob,
    RestartStrategy, SuccessPolicy,
};

use super::start::{Node, Role};
use super::{names, pod};
use crate::jobset::limits::MOST_REPLICATED_JOBS;

/// The most groups of workers: each is a replicatedJob, beside the head.
pub(crate) const MOST_GROUPS: usize = MOST_REPLICATED_JOBS - 1;

/// Annotations of a RayCluster that are meant for its JobSet.
const FORWARDED: [&str; 2] = ["lockstep.dev/", "alpha.jobset.sigs.k8s.io/"];

/// The cluster, as the controlling owner of its objects.
pub(crate) fn owner(cluster: &RayCluster) -> OwnerReference {
    OwnerReference {
        api_version: format!("{GROUP}/{VERSION}"),
        kind: "RayCluster".to_owned(),
        name: cluster.name().to_owned(),
        uid: cluster.uid_str().to_owned(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The JobSet that a cluster asks for. Groups above the limit are left out, since such a cluster is
/// refused.
pub(crate) fn compile(cluster: &RayCluster) -> JobSet {
    let spec = &cluster.spec;
    let mut jobs = vec![head(cluster)];
    jobs.extend(
        spec.worker_group_specs
            .iter()
            .take(MOST_GROUPS)
            .map(|group| workers(cluster, group)),
    );
    let stated = cluster.metadata.annotations.iter().flatten();
    let mut annotations: BTreeMap<String, String> = stated
        .filter(|(key, _)| FORWARDED.iter().any(|prefix| key.starts_with(prefix)))
        .map(|(key, value)| (key.clone(), value.clone()))
        .collect();
    annotations.insert(keys::SETTINGS_DIGEST.to_owned(), settings(cluster, &annotations));
    if let Some(nodes) = nodes(&jobs) {
        annotations.entry(SUPERVISE.to_owned()).or_insert(nodes);
    }
    annotations.insert(keys::TEMPLATE_DIGEST.to_owned(), digest(&jobs));
    JobSet {
        metadata: ObjectMeta {
            name: Some(names::jobset(cluster.name(), spec)),
            namespace: cluster.metadata.namespace.clone(),
            labels: Some([(keys::CLUSTER.to_owned(), cluster.name().to_owned())].into()),
            annotations: Some(annotations),
            owner_references: Some(vec![owner(cluster)]),
            ..ObjectMeta::default()
        },
        spec: JobSetSpec {
            gang: spec.gang.as_ref().map(|gang| gang_of(gang, &jobs)),
            replicated_jobs: jobs,
            // A head that succeeds ends the cluster. Workers that succeed do not.
            success_policy: Some(SuccessPolicy {
                operator: Operator::All,
                target_replicated_jobs: vec![names::HEAD.to_owned()],
            }),
            failure_policy: Some(FailurePolicy {
                max_restarts: Some(i32::MAX),
                restart_strategy: Some(RestartStrategy::InPlaceRestart),
                rules: Vec::new(),
            }),
            ..JobSetSpec::default()
        },
        status: None,
    }
}

/// The names of the containers that are Ray nodes: a failure of another container does not restart
/// Ray. `None` if they cannot be listed. Then all containers are workers.
fn nodes(jobs: &[ReplicatedJob]) -> Option<String> {
    let mut names: Vec<&str> = Vec::new();
    for job in jobs {
        let pod = job.template.spec.as_ref()?.template.spec.as_ref()?;
        let name = pod.containers.first()?.name.as_str();
        if name.is_empty() || name == SUPERVISE_NONE {
            return None;
        }
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Some(names.join(","))
}

/// The gang with the names of replicatedJobs, without those that have no pods now.
fn gang_of(gang: &Gang, jobs: &[ReplicatedJob]) -> Gang {
    let mut gang = gang.clone();
    for entry in &mut gang.replicated_jobs {
        if entry.name != names::HEAD {
            entry.name = names::replicated_job(&entry.name);
        }
    }
    gang.replicated_jobs
        .retain(|entry| jobs.iter().any(|job| job.name == entry.name && job.pods() > 0));
    gang
}

fn head(cluster: &RayCluster) -> ReplicatedJob {
    let group = &cluster.spec.head_group_spec;
    let node = Node {
        role: Role::Head,
        params: group.ray_start_params.as_ref(),
        resources: &group.resources,
        labels: &group.labels,
    };
    let template = pod::template(cluster, keys::HEAD_GROUP, node, &group.template);
    replicated_job(names::HEAD.to_owned(), template, 1)
}

fn workers(cluster: &RayCluster, group: &WorkerGroupSpec) -> ReplicatedJob {
    let node = Node {
        role: Role::Worker,
        params: group.ray_start_params.as_ref(),
        resources: &group.resources,
        labels: &group.labels,
    };
    let template = pod::template(cluster, &group.group_name, node, &group.template);
    let name = names::replicated_job(&group.group_name);
    let mut job = replicated_job(name, template, group.pods());
    let scope = (RESTART_SCOPE.to_owned(), keys::RESTART_SCOPE_WORKER.to_owned());
    job.template.metadata = Some(ObjectMeta {
        annotations: Some([scope].into()),
        ..ObjectMeta::default()
    });
    job.depends_on = vec![DependsOn {
        name: names::HEAD.to_owned(),
        status: DependsOnStatus::Ready,
    }];
    job
}

/// One Job with this many pods, or no Job for 0.
fn replicated_job(name: String, template: PodTemplateSpec, pods: i32) -> ReplicatedJob {
    ReplicatedJob {
        name,
        replicas: Some(i32::from(pods > 0)),
        template: JobTemplateSpec {
            metadata: None,
            spec: Some(JobSpec {
                parallelism: Some(pods.max(1)),
                completions: Some(pods.max(1)),
                completion_mode: Some("Indexed".to_owned()),
                template,
                ..JobSpec::default()
            }),
        },
        ..ReplicatedJob::default()
    }
}

/// A digest of the cluster's gang and of its annotations for the JobSet.
fn settings(cluster: &RayCluster, annotations: &BTreeMap<String, String>) -> String {
    hex_digest(&serde_json::to_string(&(&cluster.spec.gang, annotations)).unwrap_or_default())
}

/// A digest of replicatedJobs without their numbers of pods.
fn digest(jobs: &[ReplicatedJob]) -> String {
    let mut jobs = jobs.to_vec();
    for job in &mut jobs {
        job.replicas = None;
        if let Some(spec) = &mut job.template.spec {
            spec.parallelism = None;
            spec.completions = None;
        }
    }
    hex_digest(&serde_json::to_string(&jobs).unwrap_or_default())
}

/// The running JobSet with the wanted numbers of pods, or `None` if it has them already. Nothing
/// else changes.
pub(crate) fn scaled(running: &JobSet, wanted: &JobSet) -> Option<JobSet> {
    let mut scaled = running.clone();
    for job in &mut scaled.spec.replicated_jobs {
        let Some(wanted) = wanted.replicated_job(&job.name) else {
            continue;
        };
        if job.pods() != wanted.pods() {
            scale(job, wanted.pods());
        }
    }
    (scaled.spec != running.spec).then_some(scaled)
}

fn scale(job: &mut ReplicatedJob, pods: i32) {
    job.replicas = Some(i32::from(pods > 0));
    if let Some(spec) = job.template.spec.as_mut().filter(|_| pods > 0) {
        spec.parallelism = Some(pods);
        spec.completions = Some(pods);
    }
}
