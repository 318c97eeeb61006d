//! What a RayCluster must fulfil, with KubeRay's limits. Messages name the field.

use std::collections::BTreeSet;

use lockstep_api::ray::{RayCluster, RayClusterSpec, RayJob, RayJobSubmissionMode};

use crate::validation::{Violation, dns1035_label};

/// Longest name of a RayJob.
const LONGEST_JOB_NAME: usize = 47;
/// Longest name of a RayCluster.
const LONGEST_CLUSTER_NAME: usize = 53;

/// Everything that is wrong with a RayCluster.
#[must_use]
pub fn cluster(cluster: &RayCluster) -> Vec<Violation> {
    let mut violations = Vec::new();
    name(
        "RayCluster",
        cluster.name(),
        LONGEST_CLUSTER_NAME,
        &mut violations,
    );
    cluster_spec("spec", &cluster.spec, &mut violations);
    violations
}

/// Everything that is wrong with a RayJob.
#[must_use]
pub fn job(job: &RayJob) -> Vec<Violation> {
    let mut violations = Vec::new();
    name("RayJob", job.name(), LONGEST_JOB_NAME, &mut violations);
    let spec = &job.spec;
    let mut wrong =
        |field: &str, message: &str| violations.push(Violation::new(format!("spec.{field}"), message));
    match spec.submission_mode() {
        RayJobSubmissionMode::K8sJobMode | RayJobSubmissionMode::HTTPMode => {}
        mode => wrong(
            "submissionMode",
            &format!("{mode} is not supported; use K8sJobMode or HTTPMode"),
        ),
    }
    if !spec.cluster_selector.is_empty() {
        wrong(
            "clusterSelector",
            "is not supported: a RayJob has a cluster of its own",
        );
    } else if spec.ray_cluster_spec.is_none() {
        wrong(
            "rayClusterSpec",
            "one of RayClusterSpec or ClusterSelector must be set",
        );
    }
    if spec.is_suspended() && !spec.shuts_down() {
        wrong(
            "suspend",
            "a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended",
        );
    }
    let ttl = spec.ttl_seconds_after_finished.unwrap_or(0);
    if ttl < 0 {
        wrong(
            "ttlSecondsAfterFinished",
            "TTLSecondsAfterFinished must be a non-negative integer",
        );
    } else if ttl > 0 && !spec.shuts_down() {
        wrong(
            "ttlSecondsAfterFinished",
            "a RayJob with shutdownAfterJobFinishes set to false cannot have TTLSecondsAfterFinished",
        );
    }
    for (field, value) in [
        ("activeDeadlineSeconds", spec.active_deadline_seconds),
        ("preRunningDeadlineSeconds", spec.pre_running_deadline_seconds),
    ] {
        if value.is_some_and(|seconds| seconds <= 0) {
            wrong(field, &format!("{field} must be a positive integer"));
        }
    }
    for (field, value) in [
        ("backoffLimit", spec.backoff_limit),
        ("maxRetries", spec.max_retries),
    ] {
        if value.is_some_and(|retries| retries < 0) {
            wrong(field, &format!("{field} must not be negative"));
        }
    }
    if spec.backoff_limit.unwrap_or(0) > 0
        && spec.max_retries.is_some()
        && spec.max_retries != spec.backoff_limit
    {
        wrong("maxRetries", "must be as backoffLimit says, where both are set");
    }
    if let Err(error) = super::submitter::stated_environment(spec) {
        wrong(
            "runtimeEnvYAML",
            &format!("is no YAML of a runtime environment: {error}"),
        );
    }
    let resources = &spec.entrypoint_resources;
    if !resources.is_empty() && serde_json::from_str::<serde_json::Value>(resources).is_err() {
        wrong("entrypointResources", "must be JSON");
    }
    if spec.entrypoint.trim().is_empty() {
        wrong("entrypoint", "must be set");
    }
    if let Some(template) = &spec.submitter_pod_template
        && template.spec.as_ref().is_none_or(|pod| pod.containers.is_empty())
    {
        wrong("submitterPodTemplate", "should have at least one container");
    }
    if let Some(cluster) = &spec.ray_cluster_spec {
        if cluster.is_suspended() {
            wrong(
                "rayClusterSpec.suspend",
                "is the RayJob's to say, by spec.suspend",
            );
        }
        cluster_spec("spec.rayClusterSpec", cluster, &mut violations);
    }
    violations
}

/// A name that is a DNS label of at most so many characters.
pub(crate) fn name(kind: &str, name: &str, longest: usize, violations: &mut Vec<Violation>) {
    if name.len() > longest {
        let message = format!("{kind} name should be no more than {longest} characters");
        violations.push(Violation::with_value("metadata.name", name, message));
    }
    violations.extend(
        dns1035_label(name, "must be no more than 63 characters").map(|error| {
            Violation::with_value(
                "metadata.name",
                name,
                format!("{kind} name should be a valid DNS1035 label: {error}"),
            )
        }),
    );
}

/// What is wrong with the spec of a cluster, at `path`.
pub(crate) fn cluster_spec(path: &str, spec: &RayClusterSpec, violations: &mut Vec<Violation>) {
    let mut wrong =
        |field: String, message: String| violations.push(Violation::new(format!("{path}.{field}"), message));
    if spec.enable_in_tree_autoscaling == Some(true) {
        wrong(
            "enableInTreeAutoscaling".to_owned(),
            "is not supported: the number of workers is changed by replicas".to_owned(),
        );
    }
    let has_container = |template: &k8s_openapi::api::core::v1::PodTemplateSpec| {
        template
            .spec
            .as_ref()
            .is_some_and(|pod| !pod.containers.is_empty())
    };
    let head = &spec.head_group_spec;
    if !has_container(&head.template) {
        wrong(
            "headGroupSpec".to_owned(),
            "headGroupSpec should have at least one container".to_owned(),
        );
    }
    let mut capacity =
        |field: &str, params: Option<&std::collections::BTreeMap<String, String>>, stated: bool, labels| {
            let has = |name: &str| {
                params.is_some_and(|params| params.get(name).is_some_and(|value| !value.is_empty()))
            };
            if stated
                && ["num-cpus", "num-gpus", "memory", "resources"]
                    .into_iter()
                    .any(has)
            {
                wrong(
                    format!("{field}.resources"),
                    "resource fields should not be set in both rayStartParams and resources; use only one"
                        .to_owned(),
                );
            }
            if labels && has("labels") {
                wrong(
                    format!("{field}.rayStartParams"),
                    "labels should not be set in both rayStartParams and labels; use only one".to_owned(),
                );
            }
        };
    capacity(
        "headGroupSpec",
        head.ray_start_params.as_ref(),
        !head.resources.is_empty(),
        !head.labels.is_empty(),
    );
    for (index, group) in spec.worker_group_specs.iter().enumerate() {
        capacity(
            &format!("workerGroupSpecs[{index}]"),
            group.ray_start_params.as_ref(),
            !group.resources.is_empty(),
            !group.labels.is_empty(),
        );
    }
    let mut names = BTreeSet::new();
    for (index, group) in spec.worker_group_specs.iter().enumerate() {
        let field = |name: &str| format!("workerGroupSpecs[{index}]{name}");
        if !has_container(&group.template) {
            wrong(
                field(""),
                "workerGroupSpec should have at least one container".to_owned(),
            );
        }
        if group.group_name.is_empty() {
            wrong(field(".groupName"), "must be set".to_owned());
        }
        if !names.insert(super::names::replicated_job(&group.group_name)) {
            wrong(
                field(".groupName"),
                format!("{:?} is the name of another group", group.group_name),
            );
        }
        for (name, value) in [
            (".replicas", group.replicas),
            (".minReplicas", group.min_replicas),
            (".maxReplicas", group.max_replicas),
        ] {
            if value.is_some_and(|value| value < 0) {
                wrong(field(name), "must not be negative".to_owned());
            }
        }
        if group.max_replicas.is_some_and(|most| most < group.min_replicas()) {
            wrong(
                field(".maxReplicas"),
                "must not be less than minReplicas".to_owned(),
            );
        }
        if group.num_of_hosts.is_some_and(|hosts| hosts < 1) {
            wrong(field(".numOfHosts"), "must be at least 1".to_owned());
        }
        if group.pods() > MOST_PODS {
            wrong(
                field(".replicas"),
                format!("must not make more than {MOST_PODS} pods"),
            );
        }
    }
}

/// The most pods of a group: the most completions of an Indexed Job whose pods have host names.
const MOST_PODS: i32 = 99_999;
